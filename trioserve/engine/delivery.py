"""From the loop, which never waits, to a client, who may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from ..steps import FinishReason, SequenceOutput, TokenDelta, TokenLogprobs


class TokenStream:
    """An async iterator over the deltas of one request's sequences.

    A reader that is slower than the device gets what has gathered since in one delta a
    sequence. What gathers is bounded by the request's own max_tokens, so a reader that
    never reads costs memory for its own answer and nothing else.

    It ends when all sequences have ended, and raises EngineDied if the engine has.
    """

    def __init__(self, num_sequences: int, stop: Callable[[int], None]) -> None:
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
        return self._pending.pop(index).freeze(index)

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

    def freeze(self, index: int) -> TokenDelta:
        return TokenDelta(
            index=index,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            prompt_logprobs=tuple(self.prompt_logprobs),
            num_cached_tokens=self.num_cached_tokens,
            finish_reason=self.finish_reason,
            stop_token_id=self.stop_token_id,
        )
