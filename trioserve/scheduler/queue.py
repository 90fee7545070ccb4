"""The sequences that wait, in the order in which they will be admitted."""

from __future__ import annotations

import heapq

from .sequence import Sequence


class WaitingQueue:
    """A heap by Sequence.order from which any entry can be removed.

    No operation depends on the queue's length by more than its logarithm: a removed
    entry stays in the heap, unseen, until it comes to the top or until such entries
    are the majority.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, int], Sequence]] = []
        self._present: dict[tuple[float, int], Sequence] = {}

    def __len__(self) -> int:
        return len(self._present)

    def push(self, sequence: Sequence) -> None:
        self._present[sequence.order] = sequence
        heapq.heappush(self._heap, (sequence.order, sequence))

    def peek(self) -> Sequence | None:
        """Return who is next, or None."""
        while self._heap and self._heap[0][0] not in self._present:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def remove(self, sequence: Sequence) -> None:
        del self._present[sequence.order]
        # Rebuilding halves the heap, so its cost is spread over as many removals.
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._present):
            self._heap = list(self._present.items())
            heapq.heapify(self._heap)
