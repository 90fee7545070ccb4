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
      has_ended: its last block has been left.
    """

    def __init__(self, id: object = "") -> None:
        self.id = id
        self.has_ended = False
        self._tasks: list[trio.lowlevel.Task] = []

    @property
    def task(self) -> trio.lowlevel.Task | None:
        """The task that runs it; None before and afterwards."""
        return self._tasks[0] if self._tasks else None

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let all that begins in the block belong to this owner.

        A task that takes over enters its block before the first one is left.
        """
        task = trio.lowlevel.current_task()
        self._tasks.append(task)
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            self._tasks.remove(task)
            self.has_ended = not self._tasks


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


def find_owner_of(thing: object) -> Owner | None:
    """Return the owner of a task, or of another thing, if it has one."""
    if isinstance(thing, trio.lowlevel.Task):
        return thing.context.get(_current)
    return getattr(thing, "owner", None)
