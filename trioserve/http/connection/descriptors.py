"""Limits the open connections, because each takes a file descriptor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
import logging
import math
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


# Refused connections that may wait for their requests; a quarter of RESERVED.
_MOST_LINGERING: Final = 8


class Closable(Protocol):
    """A connection that can be closed."""

    def drop(self) -> None:
        """Close at once."""

    @property
    def descriptor(self) -> int:
        """The descriptor of its socket; -1 once it is closed."""


@dataclass(slots=True)
class _Peers:
    """The connections of one address.

    Attributes:
      idle: in the order in which they became idle.
    """

    num_open: int = 0
    idle: dict[Closable, None] = field(default_factory=dict)


class Connections:
    """The open connections of a server, up to a limit for all and one for each address.

    At a limit, a new connection takes the place of the connection that has been idle for
    the longest time, at the limit of an address one of the same address. A connection
    without a request is idle: it is kept alive, or its peer has sent no whole head yet. If
    all connections are busy, the new one is refused.

    Args:
      limit: None means the number of descriptors that are free when the first peer
        connects, less RESERVED. No limit is higher than that.
      per_address: None means no limit.
    """

    def __init__(
        self, limit: int | None = None, per_address: int | None = None
    ) -> None:
        self._given_limit = math.inf if limit is None else limit
        self._limit: float = 0
        self._per_address = math.inf if per_address is None else per_address
        # The address of each connection.
        self._open: dict[Closable, str] = {}
        # In the order in which they became idle.
        self._idle: dict[Closable, None] = {}
        self._peers: dict[str, _Peers] = {}
        self._num_lingering = 0
        self._num_closed = 0
        self._num_refused = 0
        self._told_at = -_SILENT_SECONDS

    def admit(self, newcomer: Closable, address: str = "") -> bool:
        """Add a connection, which begins idle; returns whether there is room for it.

        Args:
          address: the name of its peer; empty if that has no address.
        """
        if not self._open:
            self._limit = min(self._given_limit, count_room())
        peers = self._peers.get(address, _Peers())
        if address and peers.num_open >= self._per_address:
            if not self._make_room(peers.idle):
                return False
        if len(self._open) >= self._limit and not self.free_descriptor():
            return False
        self._open[newcomer] = address
        self._peers.setdefault(address, _Peers()).num_open += 1
        self.mark_idle(newcomer)
        return True

    def remove(self, connection: Closable) -> None:
        self.mark_busy(connection)
        address = self._open.pop(connection, None)
        if address is None:
            return
        self._peers[address].num_open -= 1
        if not self._peers[address].num_open:
            del self._peers[address]

    def list_descriptors(self) -> set[int]:
        return {each.descriptor for each in self._open}

    def mark_busy(self, connection: Closable) -> None:
        if connection in self._idle:
            del self._idle[connection]
            del self._peers[self._open[connection]].idle[connection]

    def mark_idle(self, connection: Closable) -> None:
        if connection in self._open:
            self._idle.setdefault(connection)
            self._peers[self._open[connection]].idle.setdefault(connection)

    def free_descriptor(self) -> bool:
        """Close the connection that has been idle longest; returns whether there was one."""
        return self._make_room(self._idle)

    @contextmanager
    def lingering(self) -> Iterator[bool]:
        """Let a refused connection stay open in the block, unless too many do so already."""
        self._num_lingering += 1
        try:
            yield self._num_lingering <= _MOST_LINGERING
        finally:
            self._num_lingering -= 1

    def _make_room(self, idle: Mapping[Closable, None]) -> bool:
        """Close the first of some idle connections; returns whether there was one."""
        longest = next(iter(idle), None)
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
            "too many connections, with %d open; since the last such line, %d idle "
            "connections were closed and %d new ones were refused or had to wait; "
            "ulimit -n is %d",
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
    num_free = most - _USUALLY_OPEN
    with suppress(OSError):
        num_free = most - len(os.listdir("/dev/fd"))
    return max(1, num_free - min(RESERVED, num_free // 2))


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
