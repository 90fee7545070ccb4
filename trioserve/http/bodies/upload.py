"""Receives the body of a request, with limits on its memory and its time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from quart_trio.wrappers.request import TrioBody
import trio
from werkzeug.exceptions import RequestEntityTooLarge

from ...errors import MemoryFull, UploadTooSlow
from .memory import SMALL_BYTES, HeapTrimmer, MemoryBudget

# Each part of an upload of this size has one timeout, as in the connection's writes. A small
# body is one part. At the default of 10 s the slowest upload is as fast as a telephone
# modem, and 64 MiB take 2.8 hours. A slower upload would occupy memory even longer.
PART_BYTES: Final = 65_536

# Shorter pieces are joined, because separate objects would take more memory than counted.
_SHORT_BYTES: Final = 4096


class ChunkedBody(TrioBody):
    """A body that is kept in the pieces in which it came, within a memory budget.

    Quart collects a body in a bytearray and copies it, which blocks the event loop for half
    a millisecond for each megabyte.

    Attributes:
      budget: counts the memory of all bodies.
      heap: trims the heap when much memory has become free.
      peer: the name of the sender, from memory_budget.name_peer.
      part_seconds: the time that each PART_BYTES may take.
      wait: ends the wait for an upload when a part took too long.
      invite: asks for a body that has not come yet; None if that is not possible.
    """

    budget: MemoryBudget
    heap: HeapTrimmer
    peer: str
    part_seconds: float
    wait: trio.CancelScope
    invite: Callable[[], Awaitable[None]] | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._chunks: list[bytes | bytearray] = []
        self._num_bytes = 0
        self._num_part_bytes = 0
        self._is_released = False

    @property
    def num_bytes(self) -> int:
        """The length of the body so far; 0 when it has been released."""
        return self._num_bytes

    def append(self, data: bytes) -> None:
        if not data or self._is_released or self._must_raise is not None:
            return
        num_bytes = self._num_bytes + len(data)
        limit = self._max_content_length
        if limit is not None and num_bytes > limit:
            self._refuse(RequestEntityTooLarge())
        elif not self.budget.take(
            len(data), peer=self.peer, is_large=num_bytes > SMALL_BYTES
        ):
            self._refuse(MemoryFull("bodies"))
        else:
            self._num_bytes = num_bytes
            last = self._chunks[-1] if self._chunks else b""
            if len(data) >= _SHORT_BYTES:
                self._chunks.append(data)
            elif isinstance(last, bytearray) and len(last) < PART_BYTES:
                last += data
            else:
                self._chunks.append(bytearray(data))
            self._num_part_bytes += len(data)
            if self._num_part_bytes >= PART_BYTES:
                self._num_part_bytes = 0
                self.wait.deadline = trio.current_time() + self.part_seconds

    async def take_chunks(self) -> list[bytes | bytearray]:
        """Wait for the end of the body; returns its pieces in order.

        Raises:
          RequestEntityTooLarge, MemoryFull, UploadTooSlow
        """
        if self._must_raise is None and not self._complete.is_set():
            if self.invite is not None:
                await self.invite()
            with self.wait as scope:
                await self._complete.wait()
            if scope.cancelled_caught:
                self._refuse(UploadTooSlow(PART_BYTES, self.part_seconds))
        if self._must_raise is not None:
            raise self._must_raise
        chunks, self._chunks = self._chunks, []
        return chunks

    def put_back(self, content: bytes) -> None:
        """Let the next take_chunks return a body that was taken."""
        self._chunks = [content]

    def release(self) -> None:
        """Give the memory of the body back, and drop the pieces that still come.

        quart-trio receives the body in a task beside the handler, so another piece may come
        when the request ends.
        """
        self._is_released = True
        self.budget.give_back(self._num_bytes, peer=self.peer)
        self.heap.note_freed(self._num_bytes)
        self._num_bytes = 0
        self._chunks.clear()

    def _refuse(self, error: Exception) -> None:
        self.release()
        self._must_raise = error
        self.set_complete()
