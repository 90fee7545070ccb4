"""The times of one generating request."""

from __future__ import annotations

from dataclasses import dataclass

from ...types.output import FinishReason
from .request_counts import RequestCounts
from .usage import RequestMetrics


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
