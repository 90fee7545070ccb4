"""A line on the terminal that shows that a long task goes on.

The total is seldom known: pip and the hub do not say it before the first byte comes, and a
converter works in memory. So the line has the elapsed time and the bytes on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import os
from pathlib import Path
import sys
from threading import Event, Thread
from time import monotonic

# Often enough to look alive. Sizes of a handful of files are read each time.
_INTERVAL_SECONDS = 0.5


@contextmanager
def show_progress(task: str, folder: Path | None = None) -> Iterator[None]:
    """Show a task's progress on standard error while the block runs, if it is a terminal.

    Args:
      task: such as "fetching org/name".
      folder: a folder whose content grows; its size is shown.
    """
    if not sys.stderr.isatty():
        yield
        return
    is_over = Event()
    first = 0 if folder is None else _measure(folder)
    thread = Thread(target=_show, args=(task, folder, first, is_over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _show(task: str, folder: Path | None, first: int, is_over: Event) -> None:
    """Write lines until the task is over.

    Args:
      first: bytes of the folder before the task.
    """
    began = monotonic()
    while not is_over.wait(_INTERVAL_SECONDS):
        num_bytes = None if folder is None else _measure(folder) - first
        line = describe_progress(task, monotonic() - began, num_bytes)
        # Erase the line, write, and go back to its start: a record of the log overwrites
        # it. One write, because several processes share the terminal.
        sys.stderr.write(f"\x1b[2K{line}\r")
        sys.stderr.flush()
    sys.stderr.write("\x1b[2K")
    sys.stderr.flush()


def describe_progress(task: str, seconds: float, num_bytes: int | None) -> str:
    """Return the line: the task, its bytes if there are any, and its seconds."""
    size = f" {num_bytes / 1e6:.0f} MB," if num_bytes is not None else ""
    return f"{task}:{size} {seconds:.0f} s"


def _measure(folder: Path) -> int:
    """Return the bytes of all files below a folder; files may come and go."""
    total = 0
    # Unlike Path.rglob, it passes over folders that vanish meanwhile.
    for parent, _, names in os.walk(folder):
        for name in names:
            # Links of the hub's cache lead to files that are counted themselves.
            with suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total
