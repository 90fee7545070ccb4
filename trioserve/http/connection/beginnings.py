"""Requests that come at once begin in turns."""

from __future__ import annotations

import math
from typing import Final

import trio

# From its head to the renderer's threads, a request takes 0.6 ms of the event loop, in four
# turns. So a turn with four requests in each of them takes two or three milliseconds.
PER_TURN: Final = 4

# Requests that begin so long after each other are not of the same turn. A note at the end of
# each turn would take a tenth of a millisecond for each request that comes alone.
_TURN_SECONDS: Final = 0.01

# Requests with these methods begin at once: they have nothing to render, and probes are among
# them.
_BRIEF: Final = (b"GET", b"HEAD")


async def wait_turn(head: bytes) -> None:
    """Wait until a request may begin.

    Args:
      head: its first bytes, or its method.
    """
    if not head.startswith(_BRIEF):
        await _find_beginnings().wait()


class Beginnings:
    """Lets a bounded number of requests begin in each turn of the event loop, in order.

    trio runs all tasks that are ready before it looks at its sockets again. If a hundred
    clients with open connections ask in the same millisecond, all of their requests would be
    parsed, checked and handed to the renderer in turns of 20 ms each, and every probe and
    every stream would wait for several of them.
    """

    def __init__(self) -> None:
        self._num_begun = 0
        # When those that have begun do not count any more.
        self._until = -math.inf
        self._waiting = trio.lowlevel.ParkingLot()
        self._run_soon = trio.lowlevel.current_trio_token().run_sync_soon
        # A call of `_begin_turn` is on its way.
        self._is_called = False

    async def wait(self) -> None:
        """Wait for a turn in which fewer than PER_TURN others begin."""
        if not self._waiting and trio.current_time() >= self._until:
            self._count(0)
        if self._num_begun < PER_TURN and not self._waiting:
            self._num_begun += 1
            return
        self._call_next_turn()
        await self._waiting.park()

    def _begin_turn(self) -> None:
        self._is_called = False
        self._count(len(self._waiting.unpark(count=PER_TURN)))
        if self._waiting:
            self._call_next_turn()

    def _call_next_turn(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._run_soon(self._begin_turn)

    def _count(self, num_begun: int) -> None:
        self._num_begun = num_begun
        self._until = trio.current_time() + _TURN_SECONDS


# Of this event loop, whatever servers it runs.
_BEGINNINGS: Final = trio.lowlevel.RunVar[Beginnings]("beginnings")


def _find_beginnings() -> Beginnings:
    try:
        return _BEGINNINGS.get()
    except LookupError:
        beginnings = Beginnings()
        _BEGINNINGS.set(beginnings)
        return beginnings
