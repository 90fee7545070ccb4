"""Counts and times what a request's sequences give."""

from __future__ import annotations

import trio

from ...frontend.text import TextStream, collect_texts
from ...types.output import TextDelta
from ...types.prompt import Prompt
from ..progress import Phase
from ..stream_times import StreamTimes
from .responses import Usage


class MeteredStream:
    """An async iterator over a TextStream's deltas that keeps the books.

    Args:
      times: is told of each delta with tokens and of each end.
    """

    def __init__(self, stream: TextStream, times: StreamTimes) -> None:
        self.prompts: tuple[Prompt, ...] = tuple(stream.prompts)
        self._stream = stream
        self._times = times
        # A reader that does not wait for us is writing what we gave it.
        self._is_awaited = True
        self._num_reasoning_tokens = 0
        self._num_cached_tokens: dict[int, int] = {}

    @property
    def num_sequences(self) -> int:
        return self._stream.num_sequences

    @property
    def phase(self) -> Phase:
        return self._stream.phase if self._is_awaited else "write"

    @property
    def splits_reasoning(self) -> bool:
        return self._stream.splits_reasoning

    @property
    def usage(self) -> Usage:
        """What the request has taken so far."""
        # Siblings of a prompt find what the first computed: only that one's hits saved
        # anything that somebody else had paid.
        per_prompt = self.num_sequences // len(self.prompts)
        return Usage.of(
            num_prompt_tokens=self._num_prompt_tokens,
            num_output_tokens=self._times.num_tokens,
            num_cached_tokens=sum(
                num_tokens
                for index, num_tokens in self._num_cached_tokens.items()
                if index % per_prompt == 0
            ),
            num_reasoning_tokens=(
                self._num_reasoning_tokens if self.splits_reasoning else None
            ),
        )

    @property
    def _num_prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    def __aiter__(self) -> MeteredStream:
        return self

    async def __anext__(self) -> TextDelta:
        self._is_awaited = True
        try:
            delta = await self._stream.__anext__()
        except StopAsyncIteration:
            self._is_awaited = False
            self._times.note_end(
                trio.current_time(),
                started_at=self._stream.started_at,
                num_prompt_tokens=self._num_prompt_tokens,
            )
            raise
        self._is_awaited = False
        self._count(delta)
        return delta

    async def collect(self) -> list[TextDelta]:
        """Read to the end; returns each sequence whole, by index."""
        return await collect_texts(self, self.num_sequences)

    def _count(self, delta: TextDelta) -> None:
        self._num_cached_tokens[delta.index] = delta.num_cached_tokens
        self._num_reasoning_tokens += delta.num_reasoning_tokens
        if delta.token_ids:
            self._times.note_tokens(
                delta.index, len(delta.token_ids), trio.current_time()
            )
        if delta.finish_reason is not None:
            self._times.note_finish(delta.index, delta.finish_reason)
