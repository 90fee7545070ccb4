"""The request that a task, a thread or a token of a limiter belongs to.

A request sets the owner of its context. All tasks and threads that it starts inherit it, so
the things that they make can be counted against the request, and found if they outlive it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import trio

_current: Final[ContextVar[Owner | None]] = ContextVar("owner", default=None)


class Owner:
    """A request, or other work that ends.

    Attributes:
      id: its name in the log, as str() gives it; a request may get its id later.
      task: runs it; None before.
      ended_at: trio.current_time() at its end; None before.
    """

    def __init__(self, id: object = "") -> None:
        self.id = id
        self.task: trio.lowlevel.Task | None = None
        self.ended_at: float | None = None

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let all that begins in the block belong to this owner, which ends with it."""
        self.task = trio.lowlevel.current_task()
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            self.ended_at = trio.current_time()
            self.task = None


class Owned:
    """A thing of the owner in whose context it was made.

    Attributes:
      owner: None if it was made for no owner.
    """

    def __init__(self) -> None:
        self.owner = find_owner()


def find_owner() -> Owner | None:
    """Return the owner of the code that runs."""
    return _current.get()


def name_owner() -> str:
    """Return the id of the owner of the code that runs; empty if it has none."""
    owner = _current.get()
    return "" if owner is None else str(owner.id)


def find_owner_of(task: trio.lowlevel.Task) -> Owner | None:
    """Return the owner of a task."""
    return task.context.get(_current)
