"""The time of a step, shared between decoding and prompts.

A step may take `max_step_seconds` while a prompt is computed, as far as its cost is known
(step_cost.py), even if no other request is there: one that comes waits for the steps in flight.
Chunks of prompts shrink as their context grows. The same limit holds while streams of several
requests wait for a step. If decoding takes too long, the rows of a request with many sequences
take turns (DecodingTurns), and each request keeps at least one row. If several clients have streams,
their requests take turns, too, and each client keeps at least one row. Only the decoding of
one request alone has no limit.

Prompts have PROMPT_SHARE of each step, and at least one block of tokens, however long
decoding takes: otherwise a busy server would never compute them. So a step exceeds its
limit in two cases: by one block of tokens, or if one row for each request (of several
clients: for each client) takes more than a quarter of the limit. Then the step takes at most
four times as long as these rows. Without rows, that is four times the fixed cost of a step, so
a slow device does not spend most of its time on that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence as Sequences
import itertools
import math
import operator

from ..step_cost import StepCost
from .draft import Draft, count_context
from .running import group_by_client
from .sequence import Flow, Sequence

# Part of a step's time that prompts may take, however long decoding takes. On a slow device
# or with many streams, prompts are then computed at three quarters of the possible speed,
# and streams run at a quarter of theirs during that time.
#
# bench/RESULTS.md ("The share of prompts in a step") compares 0.5, 0.75 and 0.9.
PROMPT_SHARE = 0.75


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


class TimeShare:
    """Limits the time of steps that several requests share.

    Args:
      cost: predicts how long rows take.
      max_step_seconds: the limit; infinite does not limit.

    Attributes:
      is_limited: there is a limit.
    """

    def __init__(self, cost: StepCost, max_step_seconds: float) -> None:
        self._cost = cost
        self._max_step_seconds = max_step_seconds
        self.is_limited = max_step_seconds < math.inf
        self._turns = DecodingTurns(cost)

    def limit(
        self, draft: Draft, decoding: list[Sequence], *, has_prompts: bool
    ) -> list[Sequence]:
        """Set the time that a step has for prompts, and return its decoding sequences.

        Args:
          decoding: sequences that could decode in the step.
          has_prompts: a prompt could be computed in the step.
        """
        limit = self._max_step_seconds
        if has_prompts:
            limit *= 1 - PROMPT_SHARE
        needed = self._predict(decoding)
        if needed > limit:
            rows_seconds = limit - self._cost.fixed_seconds
            decoding = self._turns.choose(decoding, rows_seconds)
            needed = self._predict(decoding)
        draft.seconds = max(
            self._max_step_seconds - needed,
            needed * PROMPT_SHARE / (1 - PROMPT_SHARE),
        )
        return decoding

    def _predict(self, decoding: list[Sequence]) -> float:
        """Return the seconds of a step with these rows alone."""
        return self._cost.predict_decoding(len(decoding), count_context(decoding))
