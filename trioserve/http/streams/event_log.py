"""The events of a stream, which clients read from any number on, also once more."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from ...errors import StreamNotFound

_END = b"\n\n"


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
        """Wait for the event with a number; returns it and the events behind it.

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


class StreamLog(EventLog):
    """Events with ids, for a client that lost its connection.

    Old ones are forgotten when they were sent and newer ones need room.

    Args:
      stream_id: the event with the number 7 has the id `stream_id-7`.
      max_bytes: the longest length of all events. A single event may be longer.
    """

    def __init__(self, stream_id: str, max_bytes: int) -> None:
        super().__init__()
        self._stream_id = stream_id.encode()
        self._max_bytes = max_bytes
        # The number of the oldest event that was not sent yet.
        self._num_sent = 0
        self._is_sending = False

    async def write(self, data: bytes) -> None:
        """Add events; waits for room until the oldest ones were sent.

        Args:
          data: one or several events, each with an empty line behind it.
        """
        for event in data.split(_END)[:-1]:
            whole = b"id: %s-%d\n%s%s" % (
                *(self._stream_id, self.num_events),
                *(event, _END),
            )
            while not self._make_room(len(whole)):
                await self._changed.park()
            self.append([whole])

    def check(self, number: int) -> None:
        """Check that a client can go on with an event, which may not be there yet.

        Raises:
          StreamNotFound: the event was forgotten, or is not the next one.
        """
        if not self._first <= number <= self.num_events:
            raise StreamNotFound()

    async def wait_sent(self) -> None:
        """Wait until all events were sent, or no connection sends them any more."""
        while self.num_events > self._num_sent and self._is_sending:
            await self._changed.park()

    def rewind(self, number: int) -> None:
        """Keep the events from a number on, because a connection sends them now."""
        self._num_sent = number
        self._is_sending = True

    def note_lost(self) -> None:
        """Say that no connection sends the events."""
        self._is_sending = False
        self._changed.unpark_all()

    def note_sent(self, number: int) -> None:
        """Say that all events before a number were sent."""
        self._num_sent = max(self._num_sent, number)
        # An event that is longer than the log stays no longer than that.
        self._make_room(0)
        self._changed.unpark_all()

    def _make_room(self, num_bytes: int) -> bool:
        """Forget events that were sent; False if unsent events leave no room."""
        while self.num_bytes + num_bytes > self._max_bytes and self._events:
            if self._first >= self._num_sent:
                return False
            self.num_bytes -= len(self._events.pop(0))
            self._first += 1
        return True
