"""The file with the user's lines; nobody else can read it."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_state_path
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

_NAME = "chat_history"


def open_history(*, is_kept: bool) -> tuple[History, str]:
    """Return the history, and the reason why it is not kept; "" if it is, or need not be."""
    if not is_kept:
        return InMemoryHistory(), ""
    path = user_state_path("trioserve") / _NAME
    try:
        _create(path)
    except OSError as error:
        return InMemoryHistory(), f"cannot write {path}: {error.strerror}"
    return FileHistory(path), ""


def _create(path: Path) -> None:
    """Create the file with the mode 0600, or give a file this mode.

    Raises:
      OSError
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
