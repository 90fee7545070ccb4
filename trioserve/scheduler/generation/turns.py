"""The turns of decoding sequences in a step that has no time for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence as Sequences
import itertools
import operator

from ..step_cost import StepCost
from .client_groups import group_by_client
from .sequence import Flow, Sequence


class DecodingTurns:
    """Shares the time of steps between clients, and between the requests of each.

    Clients get rows in the ratio of their weights: the n-th row of a client has the rank n /
    weight. Among equal ranks, the client is first whose latest row is oldest, so that clients
    take turns if there is no time for all of them. Within a client, each request gets a row
    before any gets its second one, and so on (max-min fairness). Within a request, the sequence
    with the oldest last turn goes first.

    If all sequences are of one client, the first row of each request is never left out. If
    not, only the first row of each client is never left out. The promise to each request
    would let a client with many requests make steps longer for all others, however small its
    weight is. Its requests take turns instead, so each still gets rows.

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
        oldest_first = sorted(sequences, key=lambda each: each.last_turn)
        for is_promised, sequence in _line_up(oldest_first):
            seconds -= self._cost.predict_row(sequence.num_computed, 1)
            if seconds < 0 and not is_promised:
                return
            sequence.last_turn = next(self._numbers)
            yield sequence


def _line_up(sequences: Sequences[Sequence]) -> Iterator[tuple[bool, Sequence]]:
    """Yield each sequence in turn, with whether its row is never left out."""
    by_client = group_by_client(sequences)
    promised: list[tuple[float, Sequence]] = []
    optional: list[tuple[float, Sequence]] = []
    for group in sorted(by_client.values(), key=_get_latest_turn):
        ranked = sorted(_rank_in_request(group), key=operator.itemgetter(0))
        for number, (rank, sequence) in enumerate(ranked):
            is_promised = (rank if len(by_client) == 1 else number) == 0
            share = (number + 1) / sequence.flow.client.weight
            (promised if is_promised else optional).append((share, sequence))
    for is_promised, entries in ((True, promised), (False, optional)):
        for _, sequence in sorted(entries, key=operator.itemgetter(0)):
            yield is_promised, sequence


def _get_latest_turn(group: list[Sequence]) -> int:
    return max(sequence.last_turn for sequence in group)


def _rank_in_request(
    sequences: Sequences[Sequence],
) -> Iterator[tuple[int, Sequence]]:
    """Yield each sequence with the number of earlier ones of the same request."""
    num_before: Counter[Flow] = Counter()
    for sequence in sequences:
        yield num_before[sequence.flow], sequence
        num_before[sequence.flow] += 1
