"""The waiting sequences of all clients, who take turns by their shares.

WaitingQueue has those of one client, in the order of their admission.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
import heapq

from ..client_shares import ClientShares
from .sequence import Flow, Sequence

# A row reads the cache of its sequence, and the memory is not free for others. A token in
# the cache counts so much of a computed token in each step: the ratio of their costs in
# ordinary steps (_SCALES in step_cost.py).
HELD_WORK = 1 / 64


def measure_row(sequence: Sequence) -> float:
    """Return the work of a sequence's next token, in computed tokens."""
    return 1 + HELD_WORK * sequence.num_computed


class WaitingQueue:
    """A heap of requests, ordered by the place of the first waiting sequence of each.

    The place of a request changes with its first sequence and with the number of its
    running ones. Then it gets a new entry. The old entry stays in the heap without effect,
    until it comes to the top or until old entries are the majority. So the cost of each
    operation grows only with the logarithm of the queue's length.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Flow]] = []
        self._num_flows = 0
        self._num_sequences = 0

    def __len__(self) -> int:
        return self._num_sequences

    def push(self, sequence: Sequence) -> None:
        self._num_sequences += 1
        flow = sequence.flow
        flow.push(sequence)
        # Behind the first one, it changes no place.
        if flow.find_first() is sequence:
            self.update(flow)

    def peek(self) -> Sequence | None:
        """Return the next sequence, or None."""
        while self._heap and self._heap[0][2].entry is not self._heap[0]:
            heapq.heappop(self._heap)
        return self._heap[0][2].find_first() if self._heap else None

    def pop(self) -> None:
        """Remove the sequence that `peek` returned."""
        self._num_sequences -= 1
        flow = self._heap[0][2]
        flow.pop_first()
        self.update(flow)

    def drop(self, sequence: Sequence) -> None:
        """Remove a sequence that has ended."""
        self._num_sequences -= 1
        self.update(sequence.flow)

    def update(self, flow: Flow) -> None:
        """Bring the entry of a flow up to date."""
        entry = _make_entry(flow)
        if entry == flow.entry:
            return
        self._num_flows -= flow.entry is not None
        flow.entry = entry
        if entry is not None:
            self._num_flows += 1
            heapq.heappush(self._heap, entry)
        # Rebuilding halves the heap, so its cost is spread over as many changes as it
        # has entries.
        if len(self._heap) > 64 and len(self._heap) > 2 * self._num_flows:
            self._heap = [entry for entry in self._heap if entry[2].entry is entry]
            heapq.heapify(self._heap)

    def check(self, flows: Collection[Flow]) -> None:
        """Assert that `peek` returns the sequence with the lowest place.

        Args:
          flows: all flows with waiting sequences.
        """
        entries = [flow.entry for flow in flows]
        assert entries == [_make_entry(flow) for flow in flows], "places are up to date"
        assert len(entries) == self._num_flows, "every request that waits is counted"
        first = self.peek()
        expected = min(filter(None, entries), default=None)
        assert (None if first is None else first.flow.entry) is expected


def _make_entry(flow: Flow) -> tuple[float, int, Flow] | None:
    first = flow.find_first()
    if first is None:
        return None
    place = flow.place if first.place is None else first.place
    return place + flow.surcharge, first.arrival, flow


class SharedQueue:
    """A queue of waiting sequences for each client.

    A client pays for a prompt when it is admitted, and for each token and what it holds in the
    cache when the token is planned.

    Attributes:
      shares: the use of each client, and its queue.
      num_sequences: all that wait.
    """

    def __init__(self) -> None:
        self.shares = ClientShares(WaitingQueue)
        self.num_sequences = 0

    def enter(self, sequence: Sequence) -> None:
        """Count a new sequence as work of its client, and let it wait."""
        self.shares.enter(sequence.flow.client)
        self.push(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Count the end of a sequence, which does not wait any more."""
        self.shares.leave(sequence.flow.client)

    def push(self, sequence: Sequence) -> None:
        """Let a sequence wait."""
        self.num_sequences += 1
        self.shares.start_waiting(sequence.flow.client).push(sequence)

    def peek(self) -> Sequence | None:
        """Return the next sequence, or None."""
        queue = self.shares.find_next()
        return None if queue is None else queue.peek()

    def pop(self, sequence: Sequence) -> None:
        """Remove the first sequence of a client."""
        self.num_sequences -= 1
        self.shares.end_waiting(sequence.flow.client).pop()

    def drop(self, sequence: Sequence) -> None:
        """Remove a sequence that has ended."""
        self.num_sequences -= 1
        self.shares.end_waiting(sequence.flow.client).drop(sequence)

    def update(self, flow: Flow) -> None:
        """Bring the entry of a flow up to date."""
        self.shares.find(flow.client).update(flow)

    def charge_prompt(self, sequence: Sequence) -> None:
        """Let the client of an admitted sequence pay for its prompt."""
        sequence.num_paid = sequence.num_uncomputed if self.shares.are_shared else 0
        self.shares.charge(sequence.flow.client, sequence.num_paid)

    def refund_prompt(self, sequence: Sequence) -> None:
        """Give back the pay for tokens that are not computed, when it loses its slot."""
        num_computed = sequence.num_computed - sequence.num_found
        num_left = max(0, sequence.num_paid - num_computed)
        self.shares.charge(sequence.flow.client, -num_left)

    def charge_decoding(self, sequences: Iterable[Sequence]) -> None:
        """Let the clients of sequences pay for a token of each."""
        for sequence in sequences:
            self.shares.charge(sequence.flow.client, measure_row(sequence))

    def check(self, flows: Collection[Flow]) -> None:
        """Assert that each queue is in order.

        Args:
          flows: all flows with waiting sequences.
        """
        total = 0
        # A client's flows differ in its weight if that has changed.
        for client in {flow.client.name: flow.client for flow in flows}.values():
            queue = self.shares.find(client)
            queue.check([flow for flow in flows if flow.client.name == client.name])
            total += len(queue)
        assert total == self.num_sequences, "every sequence that waits is counted"
