"""Counts and times what a request's sequences give."""

from __future__ import annotations

import trio

from ..observe import Metrics
from ..steps import Prompt
from ..text_engine import TextDelta, TextStream, collect_texts
from .progress import Phase
from .responses import Usage


class MeteredStream:
    """An async iterator over a TextStream's deltas that keeps the books.

    Args:
      arrived_at: trio.current_time() of the request.
    """

    def __init__(
        self, stream: TextStream, metrics: Metrics, *, arrived_at: float
    ) -> None:
        self.prompts: tuple[Prompt, ...] = tuple(stream.prompts)
        self._stream = stream
        self._metrics = metrics
        self._arrived_at = arrived_at
        # A reader that does not wait for us is writing what we gave it.
        self._is_awaited = True
        self._last_at: dict[int, float] = {}
        self._num_output_tokens = 0
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
            num_prompt_tokens=sum(len(prompt.token_ids) for prompt in self.prompts),
            num_output_tokens=self._num_output_tokens,
            num_cached_tokens=sum(
                num_tokens
                for index, num_tokens in self._num_cached_tokens.items()
                if index % per_prompt == 0
            ),
            num_reasoning_tokens=(
                self._num_reasoning_tokens if self.splits_reasoning else None
            ),
        )

    def __aiter__(self) -> MeteredStream:
        return self

    async def __anext__(self) -> TextDelta:
        self._is_awaited = True
        try:
            delta = await self._stream.__anext__()
        except StopAsyncIteration:
            self._is_awaited = False
            self._metrics.request_latency.observe(
                trio.current_time() - self._arrived_at
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
        if delta.finish_reason is not None:
            self._metrics.finished.labels(delta.finish_reason).inc()
        num_tokens = len(delta.token_ids)
        if num_tokens == 0:
            return
        self._num_output_tokens += num_tokens
        now = trio.current_time()
        last_at = self._last_at.get(delta.index)
        if last_at is None:
            self._metrics.time_to_first_token.observe(now - self._arrived_at)
        else:
            self._metrics.inter_token_latency.observe((now - last_at) / num_tokens)
        self._last_at[delta.index] = now
