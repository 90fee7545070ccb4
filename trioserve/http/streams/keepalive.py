"""Keeps silent streams open, because proxies close silent connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
import logging
from typing import Final, Protocol

import trio

logger = logging.getLogger(__name__)

# Clients ignore lines that begin with a colon (the HTML standard, 9.2.6). No empty line
# follows: where events have ids (--resume-seconds), OpenAI's client takes it for an event.
COMMENT: Final = b": keep-alive\n"

# A timer for each chunk would cost as much as the chunk. So one task looks at all streams,
# so often in the time that a stream may be silent.
_LOOKS: Final = 4


class SilentStream(Protocol):
    """A stream of events, which may be silent for long."""

    @property
    def is_waiting(self) -> bool:
        """True if nobody writes now, so that a comment may be written."""

    @property
    def num_parts(self) -> int:
        """The number of parts that were sent, without comments."""

    async def send_comment(self) -> None:
        """Send what clients ignore."""


@dataclass(slots=True)
class _Silence:
    """A stream as it was at the last look.

    Attributes:
      num_looks: those since its last part or comment.
      is_sending: its comment is being sent.
    """

    num_parts: int
    num_looks: int = 0
    is_sending: bool = False


class KeepAlive:
    """Sends comments into the streams of a server that are silent for too long.

    Args:
      seconds: the time that a stream may be silent, or up to a quarter more; 0 for any.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._streams: dict[SilentStream, _Silence] = {}
        # Set while there is a stream.
        self._has_streams = trio.Event()

    @contextmanager
    def hold(self, stream: SilentStream) -> Iterator[None]:
        """Keep a stream open while the block runs."""
        self._streams[stream] = _Silence(stream.num_parts)
        self._has_streams.set()
        try:
            yield
        finally:
            del self._streams[stream]
            if not self._streams:
                self._has_streams = trio.Event()

    async def run(self) -> None:
        """Look after the streams until cancelled."""
        if not self._seconds:
            return
        async with trio.open_nursery() as nursery:
            while True:
                # A server without streams sleeps.
                await self._has_streams.wait()
                await trio.sleep(self._seconds / _LOOKS)
                for stream, silence in self._streams.items():
                    if _is_due(stream, silence):
                        silence.is_sending = True
                        nursery.start_soon(self._send_comment, stream, silence)

    async def _send_comment(self, stream: SilentStream, silence: _Silence) -> None:
        try:
            # The stream may have gone on, or ended, since the look at it.
            if stream in self._streams and stream.is_waiting:
                await stream.send_comment()
        except Exception:
            # It ends this stream at most.
            logger.debug("a comment could not be sent", exc_info=True)
        silence.num_looks, silence.is_sending = 0, False


def _is_due(stream: SilentStream, silence: _Silence) -> bool:
    """Look at a stream; returns whether it needs a comment."""
    if silence.is_sending:
        return False
    if stream.num_parts != silence.num_parts or not stream.is_waiting:
        silence.num_parts, silence.num_looks = stream.num_parts, 0
        return False
    silence.num_looks += 1
    return silence.num_looks >= _LOOKS
