"""The times of one generating request."""

from __future__ import annotations

from dataclasses import dataclass

from ..types.output import FinishReason
from .request_counts import RequestCounts


@dataclass(slots=True)
class _Sequence:
    first_at: float
    last_at: float
    num_tokens: int


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
        if started_at is None or not self._sequences:
            return
        first_at = min(each.first_at for each in self._sequences.values())
        last_at = max(each.last_at for each in self._sequences.values())
        counts.queue_time.observe(started_at - self._submitted_at)
        counts.prefill_time.observe(first_at - started_at)
        counts.decode_time.observe(last_at - first_at)
        counts.inference_time.observe(last_at - started_at)
