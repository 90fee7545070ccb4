"""The events of a response that any number of clients may follow, at any time."""

from __future__ import annotations

from collections.abc import Iterable

import trio


class EventLog:
    """Events in order; each has its place as its number.

    Attributes:
      num_bytes: the length of all events.
      has_ended: no event will come any more.
    """

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._readers = trio.lowlevel.ParkingLot()
        self.num_bytes = 0
        self.has_ended = False

    @property
    def num_events(self) -> int:
        return len(self._events)

    def append(self, events: Iterable[bytes]) -> None:
        for event in events:
            self._events.append(event)
            self.num_bytes += len(event)
        self._readers.unpark_all()

    def end(self) -> None:
        self.has_ended = True
        self._readers.unpark_all()

    async def read(self, number: int) -> list[bytes]:
        """Wait for the event with a number; returns it and those that follow it.

        Returns:
          nothing if the log ends before that.
        """
        await trio.lowlevel.checkpoint()
        while len(self._events) <= number and not self.has_ended:
            await self._readers.park()
        return self._events[number:]

    async def wait_ended(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self.has_ended:
            await self._readers.park()
