"""The events of a stream, which clients read from any number on."""

from __future__ import annotations

from collections.abc import Iterable

import trio


class EventLog:
    """Events in order, with successive numbers; all of them stay.

    Attributes:
      num_bytes: the length of the events that are there.
      has_ended: no event will come any more.
    """

    def __init__(self) -> None:
        self._events: list[bytes] = []
        # The number of the oldest event that is there.
        self._first = 0
        self._changed = trio.lowlevel.ParkingLot()
        self.num_bytes = 0
        self.has_ended = False

    @property
    def num_events(self) -> int:
        """The events so far, and so the number of the next one."""
        return self._first + len(self._events)

    def append(self, events: Iterable[bytes]) -> None:
        for event in events:
            self._events.append(event)
            self.num_bytes += len(event)
        self._changed.unpark_all()

    def end(self) -> None:
        """Say that no event follows."""
        self.has_ended = True
        self._changed.unpark_all()

    async def read(self, number: int) -> list[bytes]:
        """Wait for the event with a number; returns it and those that follow it.

        Returns:
          nothing if the log ends before that.
        """
        await trio.lowlevel.checkpoint()
        while self.num_events <= number and not self.has_ended:
            await self._changed.park()
        assert number >= self._first, "what a client will read is not forgotten"
        return self._events[number - self._first :]

    async def wait_ended(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self.has_ended:
            await self._changed.park()
