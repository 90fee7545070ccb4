"""From the loop, which never waits, to a client, who may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import trio

from ...types.output import FinishReason, SequenceOutput, TokenDelta, TokenLogprobs

T = TypeVar("T")

# What a stream waits for: its turn on the device, its first token, its next one.
StreamPhase = Literal["queue", "prefill", "decode"]

# What comes of a delta's tokens is made on the event loop, at 10 us a token where
# reasoning is told apart: others have their turn after a few milliseconds.
_MAX_DELTA_TOKENS = 256


class TokenStream:
    """An async iterator over the deltas of one request's sequences.

    A reader that is slower than the device gets what has gathered since in one delta a
    sequence, or in several of them. What gathers is bounded by the request's own
    max_tokens, so a reader that never reads costs memory for its own answer and nothing
    else.

    It ends when all sequences have ended, and raises EngineDied if the engine has.

    Attributes:
      phase: of the sequence that has come farthest.
      started_at: when the first step with one of the sequences began, in seconds of
        trio.current_time(); None before.
    """

    def __init__(self, num_sequences: int, stop: Callable[[int], None]) -> None:
        self.phase: StreamPhase = "queue"
        self.started_at: float | None = None
        self._num_open = num_sequences
        self._stop = stop
        self._pending: dict[int, _Gathered] = {}
        self._finished: set[int] = set()
        self._error: Exception | None = None
        self._changed = trio.Event()

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> TokenDelta:
        # A checkpoint even if there is something: a fast device must not starve others.
        await trio.lowlevel.checkpoint()
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self._num_open == 0:
                raise StopAsyncIteration
            await self._changed.wait()
            self._changed = trio.Event()
        index = next(iter(self._pending))
        delta, is_all = self._pending[index].take(index)
        if is_all:
            del self._pending[index]
        return delta

    def stop(self, index: int) -> None:
        """End one sequence early, as when its text contains a stop string.

        Nothing more comes from it; the others go on.
        """
        self._pending.pop(index, None)
        if index not in self._finished:
            self._finish(index)
            self._stop(index)

    def push_nowait(self, index: int, output: SequenceOutput) -> None:
        """Add what a step gave; called by the engine loop alone."""
        if index in self._finished:
            return
        if output.token_ids:
            self.phase = "decode"
        elif not output.prompt_logprobs:
            # It is empty: a step has begun with the sequence.
            if self.phase == "queue":
                self.phase = "prefill"
                self.started_at = trio.current_time()
            return
        self._pending.setdefault(index, _Gathered()).add(output)
        if output.finish_reason is not None:
            self._finish(index)
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """Raise `error` in the reader after what has been gathered."""
        self._error = error
        self._changed.set()

    def _finish(self, index: int) -> None:
        self._finished.add(index)
        self._num_open -= 1
        self._changed.set()


@dataclass(slots=True)
class _Gathered:
    """Outputs of one sequence that nobody has read yet."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None

    def add(self, output: SequenceOutput) -> None:
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.prompt_logprobs += output.prompt_logprobs
        self.num_cached_tokens = output.num_cached_tokens
        self.finish_reason = output.finish_reason
        self.stop_token_id = output.stop_token_id

    def take(self, index: int) -> tuple[TokenDelta, bool]:
        """Return the next delta, and whether it is all that was gathered."""
        token_ids = _cut(self.token_ids)
        is_all = not self.token_ids
        delta = TokenDelta(
            index=index,
            token_ids=token_ids,
            logprobs=_cut(self.logprobs),
            prompt_logprobs=tuple(self.prompt_logprobs),
            num_cached_tokens=self.num_cached_tokens,
            finish_reason=self.finish_reason if is_all else None,
            stop_token_id=self.stop_token_id if is_all else None,
        )
        self.prompt_logprobs.clear()
        return delta, is_all


def _cut(items: list[T]) -> tuple[T, ...]:
    """Take what one delta may have off the front of a list."""
    taken = tuple(items[:_MAX_DELTA_TOKENS])
    del items[:_MAX_DELTA_TOKENS]
    return taken
