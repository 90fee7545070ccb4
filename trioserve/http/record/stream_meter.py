"""Counts and times the tokens of one answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ...frontend import TextStream
from ...types.output import FinishReason, TextDelta
from ...types.prompt import Prompt, count_tokens
from .progress import Entry, Phase
from .request_counts import RequestCounts
from .usage import RequestMetrics, Usage


@dataclass(slots=True)
class _Sequence:
    first_at: float
    last_at: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class _Spans:
    """Seconds in the queue, up to the first token, and from it to the last one."""

    queue: float
    prefill: float
    decode: float


class StreamTimes:
    """Measures when the tokens of one request's sequences go to the client.

    All times are values of trio.current_time().

    Args:
      counts: collects the measurements.
      arrived_at: the time when the server got the request.
      submitted_at: the time when the engine got it.
    """

    def __init__(
        self, counts: RequestCounts, *, arrived_at: float, submitted_at: float
    ) -> None:
        self._counts = counts
        self._arrived_at = arrived_at
        self._submitted_at = submitted_at
        self._sequences: dict[int, _Sequence] = {}

    @property
    def num_tokens(self) -> int:
        """The tokens of all sequences so far."""
        return sum(each.num_tokens for each in self._sequences.values())

    @property
    def first_at(self) -> float | None:
        """The time of the first token; None before it."""
        return min((each.first_at for each in self._sequences.values()), default=None)

    def note_tokens(self, index: int, num_tokens: int, now: float) -> None:
        """Count new tokens of a sequence that came together; at least one."""
        sequence = self._sequences.get(index)
        if sequence is None:
            self._counts.time_to_first_token.observe(now - self._arrived_at)
            self._sequences[index] = _Sequence(now, now, num_tokens)
            return
        self._counts.inter_token_latency.observe((now - sequence.last_at) / num_tokens)
        sequence.last_at = now
        sequence.num_tokens += num_tokens

    def note_finish(self, index: int, reason: FinishReason) -> None:
        """Count the end of a sequence."""
        self._counts.finished[reason,] += 1
        sequence = self._sequences.get(index)
        if sequence is not None and sequence.num_tokens > 1:
            seconds = sequence.last_at - sequence.first_at
            self._counts.time_per_output_token.observe(
                seconds / (sequence.num_tokens - 1)
            )

    def note_end(
        self, now: float, *, started_at: float | None, num_prompt_tokens: int
    ) -> None:
        """Count the end of the whole answer.

        Args:
          started_at: the time when the first step with one of its sequences began.
        """
        counts = self._counts
        counts.latency.observe(now - self._arrived_at)
        counts.prompt_tokens.observe(num_prompt_tokens)
        counts.generation_tokens.observe(self.num_tokens)
        spans = self._divide(started_at)
        if spans is not None:
            counts.queue_time.observe(spans.queue)
            counts.prefill_time.observe(spans.prefill)
            counts.decode_time.observe(spans.decode)
            counts.inference_time.observe(spans.prefill + spans.decode)

    def summarise(self, *, started_at: float | None) -> RequestMetrics:
        """Return the times as clients read them; see note_end."""
        spans = self._divide(started_at)
        if spans is None:
            return RequestMetrics()
        sequences = self._sequences.values()
        num_gaps = sum(each.num_tokens - 1 for each in sequences)
        gaps = sum(each.last_at - each.first_at for each in sequences)
        inference = spans.prefill + spans.decode
        return RequestMetrics(
            queue_time_ms=1000 * spans.queue,
            time_to_first_token_ms=1000 * spans.prefill,
            generation_time_ms=1000 * spans.decode,
            mean_itl_ms=1000 * gaps / num_gaps if num_gaps else None,
            tokens_per_second=self.num_tokens / inference if inference else None,
        )

    def _divide(self, started_at: float | None) -> _Spans | None:
        """Divide the time of the request; None if it has no token."""
        if started_at is None or not self._sequences:
            return None
        first_at = self.first_at
        assert first_at is not None, "there is a sequence with a token"
        last_at = max(each.last_at for each in self._sequences.values())
        return _Spans(
            queue=started_at - self._submitted_at,
            prefill=first_at - started_at,
            decode=last_at - first_at,
        )


class StreamMeter:
    """Counts the deltas of one request's stream, and has the phase of the request.

    The reader of the stream calls `count` for each delta and `finish` behind the last.

    Args:
      times: measures each delta with tokens, and the end of each sequence.
      charge: is called with the number of new tokens of the answer.

    Attributes:
      prompts: the prompts of the request.
      num_prompt_tokens: the tokens of all prompts.
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
        self.num_prompt_tokens = count_tokens(self.prompts)
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
        if delta.num_cached_tokens:
            num_cached = self._num_cached_tokens.get(delta.index, 0)
            self._num_cached_tokens[delta.index] = max(
                num_cached, delta.num_cached_tokens
            )
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
