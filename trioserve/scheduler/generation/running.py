"""The running sequences and their slots."""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
import operator

from ...types.output import StepResult
from ...types.plan import StepPlan
from .sequence import Sequence

_get_order = operator.attrgetter("order")


def group_by_client(sequences: Iterable[Sequence]) -> dict[str, list[Sequence]]:
    """Return the sequences of each client, by its name, in the given order.

    By name, because a client's weight may change between two requests.
    """
    groups: defaultdict[str, list[Sequence]] = defaultdict(list)
    for sequence in sequences:
        groups[sequence.flow.client.name].append(sequence)
    return dict(groups)


class RunningSequences:
    """The running sequences, sorted by Sequence.order.

    Args:
      num_slots: the most sequences that run at once.

    Attributes:
      num_flows: requests that the running sequences belong to.
      ended_slots: slots whose end the runner has not been told yet.
      has_late: sequences are late, or often late.
      num_guided: running sequences with grammars.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_flows = 0
        self._num_slots = num_slots
        self._sequences: list[Sequence] = []
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self.ended_slots: list[int] = []
        self.has_late = False
        self.num_guided = 0

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def has_free_slot(self) -> bool:
        return bool(self._free_slots)

    @property
    def num_lost_slots(self) -> int:
        """Slots that are not free, though no sequence has them."""
        return self._num_slots - len(self._free_slots) - len(self._sequences)

    def note_late(self, plan: StepPlan, result: StepResult) -> None:
        """Take in which sequences were late in a step, or are late now.

        A sequence that took its slot after the step was planned is not meant.
        """
        sampled = [row.slot for row in plan.rows if row.sample]
        has_token = {slot for slot, ids in zip(sampled, result.sampled) if ids}
        for sequence in self._sequences:
            if sequence.started_in <= plan.step_id:
                slot = sequence.slot
                sequence.note_lateness(slot in result.late, slot in has_token)
        self.has_late = any(
            sequence.is_late or sequence.is_often_late for sequence in self._sequences
        )

    def find_last(self) -> Sequence:
        """Return the sequence that is preempted first.

        It belongs to the client that holds the most blocks for its weight. A block that its
        sequences share counts once.
        """
        by_client = group_by_client(self._sequences)
        candidates = self._sequences
        if len(by_client) > 1:
            candidates = max(by_client.values(), key=_measure_blocks)
        return max(candidates, key=get_standing)

    def enter(self, sequence: Sequence) -> None:
        """Give a sequence a slot; its place among all must be set."""
        flow = sequence.flow
        self.num_flows += flow.num_running == 0
        flow.num_running += 1
        self.num_guided += sequence.sampling.grammar is not None
        sequence.slot = self._free_slots.pop()
        insort(self._sequences, sequence, key=_get_order)

    def leave(self, sequence: Sequence) -> None:
        """Take back the slot of a sequence that ends or is preempted."""
        assert sequence.slot is not None, "only a running sequence holds a slot"
        if sequence.has_unread_vectors or sequence.sampling.grammar is not None:
            self.ended_slots.append(sequence.slot)
        self._free_slots.append(sequence.slot)
        self._sequences.remove(sequence)
        flow = sequence.flow
        flow.num_running -= 1
        self.num_flows -= flow.num_running == 0
        self.num_guided -= sequence.sampling.grammar is not None

    def check(self) -> None:
        """Assert every invariant of order, slots and counts."""
        orders = [sequence.order for sequence in self._sequences]
        assert orders == sorted(set(orders)), "running sequences stand in order"
        slots = [sequence.slot for sequence in self._sequences] + self._free_slots
        assert len(slots) == len(set(slots)), "a slot has one owner"
        guided = [each for each in self._sequences if each.sampling.grammar is not None]
        assert len(guided) == self.num_guided, "every grammar is counted"
        flows = Counter(sequence.flow for sequence in self._sequences)
        assert len(flows) == self.num_flows, "every request with a sequence is counted"
        for flow, num_running in flows.items():
            assert flow.num_running == num_running, "a flow counts its sequences"


def _measure_blocks(sequences: list[Sequence]) -> float:
    """Return the blocks that the sequences of a client hold, for its latest weight."""
    held = {id for each in sequences for id in each.list_blocks()}
    return len(held) / sequences[-1].flow.client.weight


def get_standing(sequence: Sequence) -> tuple[float, int]:
    """Return the order in which running sequences keep their slots and blocks."""
    place, arrival = sequence.order
    return place + sequence.flow.surcharge, arrival
