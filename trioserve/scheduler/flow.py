"""The sequences of one request, which stand in line together."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sequence import Sequence

# Waiting time that one level of priority is worth. A guess: longer than most requests wait
# on a server that is not overloaded, short enough for a person to wait.
LEVEL_SECONDS = 10.0


class Flow:
    """The sequences of one request.

    Args:
      priority: requests with a lower number go first.

    Attributes:
      turn: when its next sequence came to the head of its line, in seconds: with the
        request, or when the sequence before it was admitted.
      num_running: its sequences that run.
      entry: its valid entry in the queue of those that wait.
    """

    __slots__ = ("priority", "turn", "num_running", "entry", "_waiting")

    def __init__(self, priority: int = 0) -> None:
        self.priority = priority
        self.turn = 0.0
        self.num_running = 0
        self.entry: tuple[float, int, Flow] | None = None
        # (arrival, sequence) of those that wait, and of some that have ended.
        self._waiting: list[tuple[int, Sequence]] = []

    @property
    def place(self) -> float:
        """The place of its next sequence among all, in seconds; the lowest is first."""
        return self.turn + LEVEL_SECONDS * self.priority

    @property
    def surcharge(self) -> float:
        """What is added to places for the flow's running sequences.

        Each of them counts as one level: so a free slot goes to the request with the
        fewest, and who has to give one back is the request with the most.
        """
        return LEVEL_SECONDS * self.num_running

    def find_first(self) -> Sequence | None:
        """Return the first of its sequences that wait."""
        while self._waiting and self._waiting[0][1].is_ended:
            heapq.heappop(self._waiting)
        return self._waiting[0][1] if self._waiting else None

    def push(self, sequence: Sequence) -> None:
        """Let a sequence wait, before those that came later."""
        heapq.heappush(self._waiting, (sequence.arrival, sequence))

    def pop_first(self) -> None:
        heapq.heappop(self._waiting)
