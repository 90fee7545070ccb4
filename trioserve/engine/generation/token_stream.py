"""The stream between the engine loop, which never waits, and one reader, which may.

ReaderQueue calls the readers of streams in groups, one group in each turn of the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal

import trio

from ...errors import (
    AdapterNotFound,
    InternalError,
    InvalidParameter,
    TrioserveError,
)
from ...observe import Owned
from ...types.output import SequenceError, TokenDelta

# A stream waits for its turn on the device, then for its first token, then for the next.
StreamPhase = Literal["queue", "prefill", "decode"]

# The event loop turns tokens into text at up to 10 us each, if reasoning is separated.
# With this many, other tasks have their turn after a few milliseconds.
_MAX_DELTA_TOKENS = 256

# By sys.getsizeof: a delta with its two tuples, a number in a tuple, and an alternative, which
# is a tuple of two numbers in a tuple. A token's own log probability takes two of the last.
_DELTA_BYTES = 250
_NUMBER_BYTES = 36
_ENTRY_BYTES = 120

# A reader writes its first event in 0.1 to 0.2 ms. All 64 of a step in one turn would keep the
# loop away from its sockets for 10 ms.
_GROUP: Final = 16


class TokenStream(Owned):
    """An async iterator over the deltas of one request's sequences.

    It has one reader, a task. A slow reader gets the deltas of several steps joined. At most
    max_tokens of the request can gather, so a reader that never reads costs the memory
    of its own answer and nothing else. A reader may leave a function (`taking`) that takes
    deltas while it waits, because to wake a task costs as much as to write an event.

    The stream ends when all sequences have ended, and raises EngineDied if the engine
    has failed.

    Args:
      num_sequences: number of sequences that the request has.
      stop: is called with the index of a sequence that the reader stops, and whether its
        answer is complete.
      call_soon: makes a call, now or soon. This wakes the reader.

    Attributes:
      phase: the phase of the most advanced sequence.
      started_at: when the first step with one of the sequences began, in seconds of
        trio.current_time(); None before.
    """

    def __init__(
        self,
        num_sequences: int,
        stop: Callable[[int, bool], None],
        call_soon: Callable[[Callable[[], None]], None] = lambda call: call(),
    ) -> None:
        super().__init__()
        self.phase: StreamPhase = "queue"
        self.started_at: float | None = None
        self._num_open = num_sequences
        self._stop = stop
        self._call_soon = call_soon
        # Sequences with unread deltas, the one that has waited longest first.
        self._pending: dict[int, deque[TokenDelta]] = {}
        self._finished: set[int] = set()
        self._error: Exception | None = None
        self._changed = trio.Event()
        self._take: Callable[[], bool] | None = None
        # The reader waits for `_changed`, and a call of `_wake` is on its way.
        self._is_waiting = self._is_called = False

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> TokenDelta:
        if self._pending:
            # A fast device must not starve other tasks. A reader that has to wait lets
            # them run anyway.
            await trio.lowlevel.checkpoint()
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self._num_open == 0:
                raise StopAsyncIteration
            self._changed = trio.Event()
            self._is_waiting = True
            try:
                await self._changed.wait()
            finally:
                self._is_waiting = False
        return self.take_nowait()

    @contextmanager
    def taking(self, take: Callable[[], bool]) -> Iterator[None]:
        """Let a function take deltas in the block, whenever the reader waits for them.

        It is called by the engine loop, so it may not wait.

        Args:
          take: takes the unread deltas; returns whether the reader may go on waiting.
        """
        self._take = take
        try:
            yield
        finally:
            self._take = None

    @property
    def has_pending(self) -> bool:
        """True if there is an unread delta."""
        return bool(self._pending)

    @property
    def num_unread_bytes(self) -> int:
        """The approximate memory of the unread deltas.

        The first delta of a sequence may have the log probabilities of the prompt. The
        others are as large as the last one.
        """
        return sum(
            _weigh(deltas[0]) + (len(deltas) - 1) * _weigh(deltas[-1])
            for deltas in self._pending.values()
        )

    def take_nowait(self) -> TokenDelta:
        """Take the next delta.

        Raises:
          trio.WouldBlock: there is none now.
        """
        if not self._pending:
            raise trio.WouldBlock
        index, deltas = next(iter(self._pending.items()))
        if len(deltas) == 1:
            del self._pending[index]
            return deltas[0]
        taken = _take(deltas)
        if not deltas:
            del self._pending[index]
        return taken

    def stop(self, index: int, *, is_complete: bool) -> None:
        """End one sequence early, for example at a stop string.

        Its unread deltas are dropped; the other sequences go on.

        Args:
          is_complete: the answer is as long as it would have been with more time.
        """
        self._pending.pop(index, None)
        if index not in self._finished:
            self._finish(index)
            self._stop(index, is_complete)

    def push_nowait(self, delta: TokenDelta) -> None:
        """Add a delta of a step; called by the engine loop alone."""
        index = delta.index
        if index in self._finished or self._error is not None:
            return
        if delta.error is not None:
            self._finish(index)
            self.fail(_make_error(delta.error))
            return
        if delta.token_ids:
            self.phase = "decode"
        elif not delta.prompt_logprobs and delta.finish_reason is None:
            # An empty delta reports that a step with the sequence has begun.
            if self.phase == "queue":
                self.phase = "prefill"
                self.started_at = trio.current_time()
            return
        if index in self._pending:
            self._pending[index].append(delta)
        else:
            self._pending[index] = deque((delta,))
        if delta.finish_reason is not None:
            self._finish(index)
        if not (self._is_called or self._changed.is_set()):
            self._is_called = True
            self._call_soon(self._wake)

    def fail(self, error: Exception) -> None:
        """Raise `error` in the reader, after the unread deltas."""
        self._error = error
        self._changed.set()

    def _finish(self, index: int) -> None:
        self._finished.add(index)
        self._num_open -= 1

    def _wake(self) -> None:
        """Give the reader its deltas, or wake it."""
        self._is_called = False
        # The sequence may have been stopped, with its deltas, since they came.
        if self._is_waiting and self._pending and self._take is not None:
            try:
                may_wait = self._take()
            except Exception as error:
                # Of this request alone: the engine loop goes on.
                self._pending.clear()
                self._error = error
            else:
                if may_wait and not self._pending and self._num_open > 0:
                    return
        self._changed.set()


def _make_error(error: SequenceError) -> TrioserveError:
    if error.adapter:
        return AdapterNotFound(error.adapter)
    if error.is_internal:
        return InternalError()
    return InvalidParameter(error.param, error.reason)


def _weigh(delta: TokenDelta) -> int:
    """Return the approximate memory of a delta, in bytes."""
    num_bytes = _DELTA_BYTES + _NUMBER_BYTES * len(delta.token_ids)
    for logprobs in (delta.logprobs, delta.prompt_logprobs):
        if logprobs:
            # All tokens of a request have as many alternatives, or one more.
            num_entries = 2 + len(logprobs[-1].top)
            num_bytes += _ENTRY_BYTES * num_entries * len(logprobs)
    return num_bytes


def _take(deltas: deque[TokenDelta]) -> TokenDelta:
    """Remove the first deltas and join them; there is at least one."""
    taken = [deltas.popleft()]
    num_tokens = len(taken[0].token_ids)
    while deltas and num_tokens < _MAX_DELTA_TOKENS:
        taken.append(deltas.popleft())
        num_tokens += len(taken[-1].token_ids)
    return taken[0] if len(taken) == 1 else TokenDelta.join(taken)


class ReaderQueue:
    """Makes calls in the order in which they come, a group in each turn."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._has_any = trio.Event()

    def add(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def flush(self) -> None:
        """Say that a step has added all of its calls: the first group is made at once.

        Unless those of the step before still wait.
        """
        if not self._has_any.is_set():
            self._call_group()

    def _call_group(self) -> None:
        for _ in range(min(_GROUP, len(self._calls))):
            self._calls.popleft()()
        if self._calls:
            self._has_any.set()
        elif self._has_any.is_set():
            self._has_any = trio.Event()

    async def run(self) -> None:
        """Make the calls that wait, until cancelled."""
        while True:
            await self._has_any.wait()
            # In the next turn.
            await trio.lowlevel.checkpoint()
            self._call_group()
