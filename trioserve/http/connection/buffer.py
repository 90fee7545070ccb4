"""The bytes of one HTTP/2 stream that wait for its window."""

from __future__ import annotations

from hypercorn.protocol.h2 import BUFFER_LOW_WATER, StreamBuffer


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
