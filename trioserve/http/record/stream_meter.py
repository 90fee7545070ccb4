"""Counts and times the tokens of one answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import trio

from ...frontend import TextStream
from ...types.output import (
    FinishReason,
    TextDelta,
)
from ...types.prompt import Prompt
from .progress import Entry, Phase
from .stream_times import StreamTimes
from .usage import (
    RequestMetrics,
    Usage,
)


class StreamMeter:
    """Counts the deltas of one request's stream, and has the phase of the request.

    The reader of the stream calls `count` for each delta and `finish` behind the last.

    Args:
      times: measures each delta with tokens, and the end of each sequence.
      charge: is called with the number of new tokens of the answer.

    Attributes:
      prompts: the prompts of the request.
      is_writing: whether the client has not taken the last delta's events yet.
      on_deadline: called with the phase when the deadline has ended a sequence.
      finish_reasons: the reasons for which sequences have ended so far.
    """

    def __init__(
        self,
        stream: TextStream,
        times: StreamTimes,
        charge: Callable[[int], None] = lambda num_tokens: None,
    ) -> None:
        self.stream = stream
        self._charge = charge
        self.prompts: tuple[Prompt, ...] = tuple(stream.prompts)
        self.is_writing = False
        self.on_deadline: Callable[[Phase], None] = lambda phase: None
        self.finish_reasons: Counter[FinishReason] = Counter()
        self._ended_at: float | None = None
        self._times = times
        self._num_reasoning_tokens = 0
        self._num_cached_tokens: dict[int, int] = {}

    @property
    def phase(self) -> Phase:
        return "write" if self.is_writing else self.stream.phase

    @property
    def entries(self) -> list[Entry]:
        """The phases since the engine has the request, without those in the queue."""
        times: dict[Phase, float | None] = {
            "prefill": self.stream.started_at,
            "decode": self._times.first_at,
            "write": self._ended_at,
        }
        return [Entry(phase, at) for phase, at in times.items() if at is not None]

    @property
    def usage(self) -> Usage:
        """The tokens of the request so far."""
        # Only the first sequence of a prompt saved work by its cached tokens. The others
        # find the tokens of the first one in the cache.
        per_prompt = self.stream.num_sequences // len(self.prompts)
        return Usage.of(
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self._times.num_tokens,
            num_cached_tokens=sum(
                num_tokens
                for index, num_tokens in self._num_cached_tokens.items()
                if index % per_prompt == 0
            ),
            num_reasoning_tokens=(
                self._num_reasoning_tokens if self.stream.splits_reasoning else None
            ),
        )

    @property
    def metrics(self) -> RequestMetrics:
        """The times of the request so far."""
        return self._times.summarise(started_at=self.stream.started_at)

    @property
    def num_prompt_tokens(self) -> int:
        """The tokens of all prompts."""
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    @property
    def num_output_tokens(self) -> int:
        """The tokens of all sequences so far."""
        return self._times.num_tokens

    @property
    def num_unread_bytes(self) -> int:
        """The approximate memory of the tokens that nobody has read yet."""
        return self.stream.num_unread_bytes

    def count(self, delta: TextDelta) -> None:
        """Count a delta that the stream has just given."""
        # The delta by which a deadline ends a sequence does not have the number.
        num_cached = self._num_cached_tokens.get(delta.index, 0)
        self._num_cached_tokens[delta.index] = max(num_cached, delta.num_cached_tokens)
        self._num_reasoning_tokens += delta.num_reasoning_tokens
        if delta.token_ids:
            self._charge(len(delta.token_ids))
            self._times.note_tokens(
                delta.index, len(delta.token_ids), trio.current_time()
            )
        if delta.finish_reason is not None:
            self._times.note_finish(delta.index, delta.finish_reason)
            self.finish_reasons[delta.finish_reason] += 1
        if delta.finish_reason == "deadline":
            self.on_deadline(self.phase)

    def finish(self) -> None:
        """Count the end of the stream; only the last bytes are not written yet."""
        self.is_writing = True
        self._ended_at = trio.current_time()
        self._times.note_end(
            self._ended_at,
            started_at=self.stream.started_at,
            num_prompt_tokens=self.num_prompt_tokens,
        )

    def fail(self, error: Exception) -> None:
        """Raise `error` in the reader of the stream."""
        self.stream.fail(error)

    async def collect(self) -> list[TextDelta]:
        """Read the stream to its end; returns each whole sequence, by index."""
        completed = await self.stream.collect(on_delta=self.count)
        self.finish()
        return completed
