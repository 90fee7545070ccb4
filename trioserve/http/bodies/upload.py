"""The body of a request while it comes in: how much of it is held, and for how long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from quart_trio.wrappers.request import TrioBody
import trio
from werkzeug.exceptions import RequestEntityTooLarge

from ...errors import MemoryFull, UploadTooSlow
from .heap import HeapTrimmer
from .memory_budget import SMALL_BYTES, MemoryBudget

# The part of an upload that has one timeout, as the connection's writes have. A small body
# is one part. At the default of 10 s the slowest upload has the rate of a telephone modem,
# and 64 MiB take 2.8 hours. At any lower rate, a body would hold its memory for longer.
PART_BYTES: Final = 65_536

# Shorter pieces are joined: an object of its own would take more memory than is counted.
_SHORT_BYTES: Final = 4096


class UploadDeadline:
    """Cancels the wait for an upload that makes no progress.

    Args:
      seconds: what each PART_BYTES may take.

    Attributes:
      scope: cancelled when a part took too long.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.scope = trio.CancelScope(deadline=trio.current_time() + seconds)
        self._num_bytes = 0

    def note(self, num_bytes: int) -> None:
        """Count what came."""
        self._num_bytes += num_bytes
        if self._num_bytes >= PART_BYTES:
            self._num_bytes = 0
            self.scope.deadline = trio.current_time() + self.seconds


class ChunkedBody(TrioBody):
    """A body that is kept as it came, at the cost of an account.

    Quart gathers it in a bytearray and copies that, which holds the event loop up for
    half a millisecond each megabyte.

    Attributes:
      account: what the bodies of all requests take together.
      heap: told of what is held no more.
      peer: the sender, as account.name_peer names it.
      deadline: the end of a slow upload.
    """

    budget: MemoryBudget
    heap: HeapTrimmer
    peer: str
    deadline: UploadDeadline

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._chunks: list[bytes | bytearray] = []
        self._num_bytes = 0
        self._is_released = False

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
            self._keep(data)
            self.deadline.note(len(data))

    async def take_chunks(
        self, invite: Callable[[], Awaitable[None]]
    ) -> list[bytes | bytearray]:
        """Wait for the end and hand over what came, in order.

        Args:
          invite: called if the body is wanted and has not come yet.

        Raises:
          RequestEntityTooLarge, MemoryFull, UploadTooSlow
        """
        if self._must_raise is None and not self._complete.is_set():
            await invite()
            with self.deadline.scope as scope:
                await self._complete.wait()
            if scope.cancelled_caught:
                self._refuse(UploadTooSlow(PART_BYTES, self.deadline.seconds))
        if self._must_raise is not None:
            raise self._must_raise
        chunks, self._chunks = self._chunks, []
        return chunks

    def release(self) -> None:
        """Tell that nothing of it is held any more, and drop what still comes.

        quart-trio takes the body in beside the handler, and may have a piece in its hands
        when the request ends.
        """
        self._is_released = True
        self.budget.give_back(self._num_bytes, peer=self.peer)
        self.heap.note_freed(self._num_bytes)
        self._num_bytes = 0
        self._chunks.clear()

    def _keep(self, data: bytes) -> None:
        last = self._chunks[-1] if self._chunks else b""
        if len(data) >= _SHORT_BYTES:
            self._chunks.append(data)
        elif isinstance(last, bytearray) and len(last) < PART_BYTES:
            last += data
        else:
            self._chunks.append(bytearray(data))

    def _refuse(self, error: Exception) -> None:
        self.release()
        self._must_raise = error
        self.set_complete()
