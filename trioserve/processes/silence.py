"""The watch over another process, which may have stopped without an end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

# The time between two looks. A process sends a sign of life as often (processes/parent.py).
_LOOK_SECONDS = 1.0


class SilenceWatch:
    """Ends a process that sends nothing for too long.

    It may have been stopped (SIGSTOP), or its event loop hangs. Connections come to the socket
    of an HTTP process as long as it lives, and nobody answers them.

    Args:
      end: ends the process, or raises an error.
      limit: looks without a message after which the process is ended. If this process did not
        run for a while, the other one was probably stopped with it; so looks are counted, not
        seconds.

    Attributes:
      has_ended: the process was silent for too long.
    """

    def __init__(self, end: Callable[[], Awaitable[None]], *, limit: int) -> None:
        self._end = end
        self._limit = limit
        self._num_silent = 0
        self._is_watched = False
        self.has_ended = False

    def begin(self) -> None:
        """Watch from here on. Before, imports may hold the process up."""
        self._is_watched = True

    def note_message(self) -> None:
        self._num_silent = 0

    async def run(self) -> None:
        """Look until the process is silent for too long, and end it."""
        while self._num_silent < self._limit:
            await trio.sleep(_LOOK_SECONDS)
            if self._is_watched:
                self._num_silent += 1
        self.has_ended = True
        await self._end()
