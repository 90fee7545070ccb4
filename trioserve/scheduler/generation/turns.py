"""Chooses who decodes where a step has no time for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence as Sequences
import itertools

from ..step_cost import StepCost
from .sequence import Flow, Sequence


class DecodingTurns:
    """Shares steps' time between requests by max-min fairness.

    Each request has a row before any has its second one, and so on until the time is full.
    The first row of each is never left out, for to leave it out would make nobody faster.
    Within a request it is the turn of the sequence whose last turn was the earliest.

    Args:
      cost: of rows.
    """

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._numbers = itertools.count(1)

    def choose(self, sequences: Sequences[Sequence], seconds: float) -> list[Sequence]:
        """Return the sequences that decode, in the order in which they came.

        Args:
          sequences: those that could decode.
          seconds: what their rows may take together.
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
    """Yield sequences with the number of those of their request that come before."""
    num_before: Counter[Flow] = Counter()
    for sequence in sequences:
        yield num_before[sequence.flow], sequence
        num_before[sequence.flow] += 1
