"""The open connections, and a limit on them: each takes a file descriptor."""

from __future__ import annotations

import logging
import os
import resource
from typing import Final, Protocol

import trio

logger = logging.getLogger(__name__)

# Descriptors that connections leave free: for the shared memory of tensors, for fetched
# images (8 connections by default) and for the pipes of template processes. Where there
# are few descriptors, half of them.
RESERVED: Final = 32

# A limit that suffices for every server on this stack. Higher ones make programs slow
# that close all possible descriptors when they start a process.
_MOST_DESCRIPTORS: Final = 65_536

# Twice as many as `trioserve serve` has open when it is ready.
_USUALLY_OPEN: Final = 24

# A flood of strangers fills no log.
_SILENT_SECONDS: Final = 60.0


class Closable(Protocol):
    def drop(self) -> None:
        """Close at once."""


class Connections:
    """The open connections of a server, at most as many as it has descriptors for.

    At the limit, a newcomer takes the place of the connection that has been idle for the
    longest time. Idle is a connection without a request: it is kept alive, or its peer
    has sent nothing yet, or half a head. Where all of them are busy, the newcomer is
    refused.

    Args:
      limit: None for as many as the process has descriptors for when the first peer
        connects. RESERVED descriptors stay free.
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
        """Make room for a connection, which begins idle; returns whether there is any."""
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

    def mark_busy(self, connection: Closable) -> None:
        self._idle.pop(connection, None)

    def mark_idle(self, connection: Closable) -> None:
        if connection in self._open:
            self._idle.setdefault(connection)

    def free_descriptor(self) -> bool:
        """Close the longest idle connection; returns whether there was one."""
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
            "descriptors are short, with %d connections: %d idle ones were closed, and "
            "%d new ones refused or kept waiting since the last such line; "
            "ulimit -n is %d",
            len(self._open),
            self._num_closed,
            self._num_refused,
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )
        self._told_at = now
        self._num_closed = self._num_refused = 0


def count_room() -> int:
    """Return how many more connections this process has descriptors for, at least 1."""
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
    """Allow this process as many descriptors as it may have, within reason.

    The usual limit of 1,024 is so low only for programs that use select(2). A process
    may raise it by itself up to the hard limit, which is higher.
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
        logger.info("%d descriptors must do: %s", soft, error)
