"""The queue of waiting sequences, in the order of their admission."""

from __future__ import annotations

from collections.abc import Collection
import heapq

from .sequence import Flow, Sequence


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
