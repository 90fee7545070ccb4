"""Requests that come at once begin in turns."""

from __future__ import annotations

from typing import Final

import trio

# From its head to the renderer's threads, a request takes 0.6 ms of the event loop, in four
# turns. So a turn with four requests in each of them takes two or three milliseconds.
PER_TURN: Final = 4

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
        self._waiting = trio.lowlevel.ParkingLot()
        self._run_soon = trio.lowlevel.current_trio_token().run_sync_soon

    async def wait(self) -> None:
        """Wait for a turn in which fewer than PER_TURN others begin."""
        if self._num_begun == PER_TURN:
            await self._waiting.park()
            return
        if self._num_begun == 0:
            self._run_soon(self._begin_turn)
        self._num_begun += 1

    def _begin_turn(self) -> None:
        self._num_begun = len(self._waiting.unpark(count=PER_TURN))
        if self._num_begun:
            self._run_soon(self._begin_turn)


# Of this event loop, whatever servers it runs.
_BEGINNINGS: Final = trio.lowlevel.RunVar[Beginnings]("beginnings")


def _find_beginnings() -> Beginnings:
    try:
        return _BEGINNINGS.get()
    except LookupError:
        beginnings = Beginnings()
        _BEGINNINGS.set(beginnings)
        return beginnings
