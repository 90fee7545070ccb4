"""The other clients of a claim, and the slots and blocks that they hold."""

from __future__ import annotations

from collections import Counter
import itertools

from .running import get_standing
from .sequence import Sequence


class Rival:
    """Another client, and its running sequences that have not been chosen.

    Attributes:
      weight: of its latest sequence, because it may change between two requests.
      used: its use, for its weight.
      sequences: the first to leave is the last.
    """

    def __init__(self, sequences: list[Sequence], used: float) -> None:
        self.weight = sequences[-1].flow.client.weight
        self.used = used
        self.sequences = sorted(sequences, key=get_standing)


class SlotAmount:
    """The slots that a client holds."""

    def __init__(self, rival: Rival) -> None:
        self.num_held = len(rival.sequences)

    def count_lost(self, sequence: Sequence) -> int:
        """Return how many the client loses with a sequence."""
        return 1

    def remove(self, sequence: Sequence) -> None:
        """Count that a sequence leaves."""
        self.num_held -= 1


class BlockAmount:
    """The blocks that a client holds; one that its sequences share counts once."""

    def __init__(self, rival: Rival) -> None:
        tables = (each.list_blocks() for each in rival.sequences)
        self._holders = Counter(itertools.chain.from_iterable(tables))
        self.num_held = len(self._holders)

    def count_lost(self, sequence: Sequence) -> int:
        """Return how many the client loses with a sequence."""
        return sum(self._holders[id] == 1 for id in sequence.list_blocks())

    def remove(self, sequence: Sequence) -> None:
        """Count that a sequence leaves."""
        self.num_held -= self.count_lost(sequence)
        self._holders.subtract(sequence.list_blocks())


Amount = SlotAmount | BlockAmount
