"""Windows of HTTP/2: bytes that wait for them, and deadlines, so that no peer keeps them shut."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
import math

from hypercorn.protocol.h2 import BUFFER_LOW_WATER, StreamBuffer
import trio


class GuardedBuffer(StreamBuffer):
    """A buffer that pauses its app until the buffer is nearly empty."""

    @property
    def is_finished(self) -> bool:
        """True if the app has written all of its answer."""
        return self._complete

    def __len__(self) -> int:
        return len(self.buffer)

    async def pop(self, max_length: int) -> bytes:
        data = bytes(self.buffer[:max_length])
        del self.buffer[:max_length]
        # hypercorn looks at the length of `data` instead. While a window is shut, that is 0
        # each time, and the app could write more each time.
        if len(self.buffer) < BUFFER_LOW_WATER:
            await self._paused.set()
        if not self.buffer:
            await self._is_empty.set()
        return data


# The stream id of the connection's own window (RFC 9113, 6.9).
CONNECTION = 0

# A peer makes progress when it takes so many bytes, or all that wait. Single bytes do not
# count. Clients commonly reopen the default window of 64 KiB by halves.
PROGRESS_SIZE = 2**15


@dataclass(slots=True, kw_only=True)
class Stall:
    """A window that is shut: the bytes that the peer must take, and until when."""

    num_due: int
    deadline: float


class StalledWindows:
    """The windows that are shut while bytes wait for them.

    When a window shuts, a period of `seconds` begins. In it the peer must take the bytes
    that wait, or PROGRESS_SIZE of them if there are more.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # All periods are equally long, so the first to begin is the first to end.
        self._stalls: dict[int, Stall] = {}

    @property
    def next_deadline(self) -> float:
        return next((stall.deadline for stall in self._stalls.values()), math.inf)

    def begin(self, stream_id: int, num_waiting: int, now: float) -> None:
        """Note that a window is shut, unless that was noted before.

        Args:
          num_waiting: the bytes that wait for the window.
        """
        self._stalls.setdefault(
            stream_id,
            Stall(
                num_due=min(num_waiting, PROGRESS_SIZE), deadline=now + self._seconds
            ),
        )

    def take(self, stream_id: int, num_bytes: int) -> None:
        """Note that bytes of a stream no longer wait: they were sent or dropped."""
        for window in (stream_id, CONNECTION):
            stall = self._stalls.get(window)
            if stall is not None:
                stall.num_due -= num_bytes
                if stall.num_due <= 0:
                    del self._stalls[window]

    def pop_expired(self, now: float) -> Iterator[int]:
        """Forget and yield the windows whose deadline has passed."""
        while self.next_deadline <= now:
            stream_id = next(iter(self._stalls))
            del self._stalls[stream_id]
            yield stream_id


class WindowWatch:
    """Reports windows that stay shut too long.

    Args:
      seconds: see StalledWindows.
      give_up: called with the id of the stream, or CONNECTION.
    """

    def __init__(
        self, seconds: float, give_up: Callable[[int], Awaitable[None]]
    ) -> None:
        self._stalled = StalledWindows(seconds)
        self._give_up = give_up
        self._is_over = False
        self._sleep = trio.CancelScope()

    def begin(self, stream_id: int, num_waiting: int) -> None:
        self._stalled.begin(stream_id, num_waiting, trio.current_time())
        self._sleep.deadline = self._stalled.next_deadline

    def take(self, stream_id: int, num_bytes: int) -> None:
        self._stalled.take(stream_id, num_bytes)

    async def run(self) -> None:
        """Watch until `stop` is called."""
        while not self._is_over:
            deadline = self._stalled.next_deadline
            with trio.CancelScope(deadline=deadline) as self._sleep:
                await trio.sleep_forever()
            for stream_id in self._stalled.pop_expired(trio.current_time()):
                await self._give_up(stream_id)

    def stop(self) -> None:
        self._is_over = True
        self._sleep.cancel()
