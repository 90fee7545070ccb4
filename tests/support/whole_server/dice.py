"""Draws for histories, from one seed."""

from __future__ import annotations

import random


class Dice:
    """Random numbers of one history.

    Args:
      seed: decides all draws.

    Attributes:
      random: the source of the numbers.
      is_calm: nothing goes wrong in the history, so that its answers are whole.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.is_calm = self.chance(0.2)

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self.random.random() < probability

    def mishap(self, probability: float) -> bool:
        """Return True with a probability, and never in a calm history."""
        return self.chance(probability) and not self.is_calm
