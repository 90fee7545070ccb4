"""The turns of decoding sequences in a step that has no time for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence as Sequences
import itertools

from ..step_cost import StepCost
from .sequence import Flow, Sequence


class DecodingTurns:
    """Shares the time of steps between requests by max-min fairness.

    Each request gets a row before any gets its second one, and so on until the time is used
    up. The first row of each request is never left out. Within a request, the sequence
    with the oldest last turn goes first.

    Args:
      cost: predicts the time of a row.
    """

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._numbers = itertools.count(1)

    def choose(self, sequences: Sequences[Sequence], seconds: float) -> list[Sequence]:
        """Return the sequences that decode, in the given order.

        Args:
          sequences: all sequences that could decode.
          seconds: the time for all rows together.
        """
        chosen = set(self._take(sequences, seconds))
        return [sequence for sequence in sequences if sequence in chosen]

    def _take(
        self, sequences: Sequences[Sequence], seconds: float
    ) -> Iterator[Sequence]:
        ranked = _rank(sorted(sequences, key=lambda each: each.last_turn))
        for rank, sequence in sorted(ranked, key=lambda entry: entry[0]):
            seconds -= self._cost.predict_row(sequence.num_computed, 1)
            if seconds < 0 and rank > 0:
                return
            sequence.last_turn = next(self._numbers)
            yield sequence


def _rank(sequences: Sequences[Sequence]) -> Iterator[tuple[int, Sequence]]:
    """Yield each sequence with the number of earlier ones of the same request."""
    num_before: Counter[Flow] = Counter()
    for sequence in sequences:
        yield num_before[sequence.flow], sequence
        num_before[sequence.flow] += 1
