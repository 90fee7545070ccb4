"""Limits the open connections, because each takes a file descriptor."""

from __future__ import annotations

import logging
import os
import resource
from typing import Final, Protocol

import trio

logger = logging.getLogger(__name__)

# Descriptors that connections leave free, or half of all if there are few. They are for
# the shared memory of tensors, for fetched images (8 connections by default) and for the
# pipes of template processes.
RESERVED: Final = 32

# Enough for every server on this stack. With a higher limit, programs that close all
# possible descriptors when they start a process become slow.
_MOST_DESCRIPTORS: Final = 65_536

# Twice the number of descriptors that a ready `trioserve serve` has open.
_USUALLY_OPEN: Final = 24

# The least time between two log lines, so that a flood of peers does not fill the log.
_SILENT_SECONDS: Final = 60.0


class Closable(Protocol):
    """A connection that can be closed."""

    def drop(self) -> None:
        """Close at once."""

    @property
    def descriptor(self) -> int:
        """That of its socket; -1 once it is closed."""


class Connections:
    """The open connections of a server, up to a limit.

    At the limit, a new connection takes the place of the connection that has been idle for
    the longest time. A connection without a request is idle: it is kept alive, or its peer
    has sent no whole head yet. If all connections are busy, the new one is refused.

    Args:
      limit: None means the number of descriptors that are free when the first peer
        connects, less RESERVED.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._given_limit = limit
        self._limit = limit or 0
        self._open: set[Closable] = set()
        # In the order in which they became idle.
        self._idle: dict[Closable, None] = {}
        self._num_closed = 0
        self._num_refused = 0
        self._told_at = -_SILENT_SECONDS

    def admit(self, newcomer: Closable) -> bool:
        """Add a connection, which begins idle; returns whether there is room for it."""
        if self._given_limit is None and not self._open:
            self._limit = count_room()
        if len(self._open) >= self._limit and not self.free_descriptor():
            return False
        self._open.add(newcomer)
        self._idle[newcomer] = None
        return True

    def remove(self, connection: Closable) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def list_descriptors(self) -> set[int]:
        return {each.descriptor for each in self._open}

    def mark_busy(self, connection: Closable) -> None:
        self._idle.pop(connection, None)

    def mark_idle(self, connection: Closable) -> None:
        if connection in self._open:
            self._idle.setdefault(connection)

    def free_descriptor(self) -> bool:
        """Close the connection that has been idle longest; returns whether there was one."""
        longest = next(iter(self._idle), None)
        if longest is None:
            self._num_refused += 1
        else:
            self.remove(longest)
            longest.drop()
            self._num_closed += 1
        self._tell()
        return longest is not None

    def _tell(self) -> None:
        now = trio.current_time()
        if now - self._told_at < _SILENT_SECONDS:
            return
        logger.warning(
            "few descriptors are left, with %d connections open; since the last such "
            "line, %d idle connections were closed and %d new ones were refused or had to "
            "wait; ulimit -n is %d",
            len(self._open),
            self._num_closed,
            self._num_refused,
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )
        self._told_at = now
        self._num_closed = self._num_refused = 0


def count_room() -> int:
    """Return the number of connections that have free descriptors, at least 1."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    num_free = most - _count_open()
    return max(1, num_free - min(RESERVED, num_free // 2))


def _count_open() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return _USUALLY_OPEN


def raise_descriptor_limit() -> None:
    """Raise this process's limit of descriptors to the hard limit, or to 65,536.

    The usual limit of 1,024 is only so low because of programs that use select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        logger.info("the limit of descriptors stays at %d: %s", soft, error)
