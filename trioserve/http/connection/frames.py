"""Counts the frames of an HTTP/2 peer, and cuts them into turns of the event loop.

h2 parses all bytes in one call, answers each PING and SETTINGS, and does not limit frames
without content. So this module reads the heads of frames first.
"""

from __future__ import annotations

from collections.abc import Iterator

from h2.exceptions import DenialOfServiceError, FrameTooLargeError

# RFC 9113, 3.4, 4.1 and 6.
PREFACE_SIZE = 24
HEAD_SIZE = 9
DATA, HEADERS, SETTINGS, PUSH_PROMISE, CONTINUATION = 0, 1, 4, 5, 9

# The number of costly frames that a peer may send at once, and then in each second.
# nghttp2 has these limits for stream resets.
MAX_COSTLY_FRAMES = 1000
COSTLY_FRAMES_PER_SECOND = 33.0

# DATA frames of this size or more are not costly: Tomcat's overheadDataThreshold.
SHORT_FRAME = 1024

# Still shorter ones, and padded ones, count as several, so a body may have 250 of them, about
# as many as it may have small chunks in HTTP/1.
TINY_FRAME = 64
TINY_FRAME_COST = 4
PADDED = 0x8

# For each DATA frame that the peer takes, it may send so many frames more. Clients answer
# with two WINDOW_UPDATE and perhaps a PING, and a request may have two short DATA frames.
# Envoy allows as many WINDOW_UPDATE for each DATA frame.
FRAMES_PER_DATA_SENT = 10

# nghttp2's limits of one SETTINGS frame and of one header block.
MAX_SETTINGS = 32
SETTING_SIZE = 6
MAX_CONTINUATIONS = 8

# The work of one turn of the event loop. Measured on one core: PING takes 0.5 ms a turn,
# and requests with as many fields as are allowed 5 ms. A header block of 64 KiB is decoded
# at once, in 8 ms.
FRAMES_PER_TURN = 16
FRAMES_PER_BLOCK = 4
BLOCK_BYTES_PER_FRAME = 2**10


class FrameBudget:
    """A token bucket of frames that cost work and have little content.

    Args:
      now: trio.current_time().
    """

    def __init__(self, now: float) -> None:
        self._num_left = float(MAX_COSTLY_FRAMES)
        self._time = now

    def spend(self, now: float, num_frames: int = 1) -> None:
        """Count a frame.

        Args:
          num_frames: it costs as much as so many.

        Raises:
          DenialOfServiceError: there were too many frames.
        """
        self.earn((now - self._time) * COSTLY_FRAMES_PER_SECOND)
        self._time = now
        self._num_left -= num_frames
        if self._num_left < 0.0:
            raise DenialOfServiceError("too many frames")

    def earn(self, num_frames: float) -> None:
        self._num_left = min(self._num_left + num_frames, MAX_COSTLY_FRAMES)


class FrameCutter:
    """Cuts the bytes of a peer into pieces, one for each turn of the event loop.

    Args:
      budget: pays for each frame except long DATA frames.
      max_frame_size: longest payload of a frame, in bytes.
      max_block_size: longest header block, in bytes.
    """

    def __init__(
        self, budget: FrameBudget, *, max_frame_size: int, max_block_size: int
    ) -> None:
        self._budget = budget
        self._max_frame_size = max_frame_size
        self._max_block_size = max_block_size
        # Bytes of the preface or of the last frame that are still to come.
        self._num_missing = PREFACE_SIZE
        # The beginning of a frame's head.
        self._rest = b""
        self._block_size = 0
        self._num_continuations = 0

    def cut(self, data: bytes, now: float) -> Iterator[bytes]:
        """Yield all whole heads and payloads in `data`, piece by piece.

        Raises:
          DenialOfServiceError: the peer floods the server.
          FrameTooLargeError: a frame is longer than allowed. h2 would collect all of it
            before it noticed.
        """
        data = self._rest + data
        start, end, work = 0, self._pass_over(data, 0, self._num_missing), 0
        while len(data) - end >= HEAD_SIZE:
            length = int.from_bytes(data[end : end + 3], "big")
            work += self._check(data[end + 3], length, data[end + 4] & PADDED, now)
            end = self._pass_over(data, end, HEAD_SIZE + length)
            if work >= FRAMES_PER_TURN:
                yield data[start:end]
                start, work = end, 0
        self._rest = data[end:]
        if start < end:
            yield data[start:end]

    def _pass_over(self, data: bytes, start: int, length: int) -> int:
        end = min(start + length, len(data))
        self._num_missing = start + length - end
        return end

    def _check(self, frame_type: int, length: int, padded: int, now: float) -> int:
        """Check a frame by its head; returns its work, in frames."""
        if length > self._max_frame_size:
            raise FrameTooLargeError("a frame is too long")
        if frame_type == SETTINGS and length > MAX_SETTINGS * SETTING_SIZE:
            raise DenialOfServiceError("too many settings in one frame")
        if frame_type == DATA and length and (length < TINY_FRAME or padded):
            self._budget.spend(now, TINY_FRAME_COST)
        elif frame_type != DATA or length < SHORT_FRAME:
            self._budget.spend(now)
        if frame_type in (HEADERS, PUSH_PROMISE, CONTINUATION):
            self._check_block(frame_type, length)
            return FRAMES_PER_BLOCK + length // BLOCK_BYTES_PER_FRAME
        return 1

    def _check_block(self, frame_type: int, length: int) -> None:
        if frame_type != CONTINUATION:
            self._block_size = self._num_continuations = 0
        else:
            self._num_continuations += 1
        self._block_size += length
        if self._num_continuations > MAX_CONTINUATIONS:
            raise DenialOfServiceError("too many continuations")
        if self._block_size > self._max_block_size:
            raise DenialOfServiceError("a header block is too long")
