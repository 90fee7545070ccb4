"""The numbers of all slots by which plain rows choose their next tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..step.plain import PlainRows
from .choice import Choice
from .draw import make_keys

_COLUMNS = np.dtype(
    [("plain_from", np.int64), ("seed", np.uint64), ("temperature", np.float32)]
)

# Most servers have no more slots.
_FEW_SLOTS = 256


class PlainColumns:
    """The numbers of all slots, so that a step need not ask each of its rows."""

    def __init__(self) -> None:
        self._columns = np.zeros(_FEW_SLOTS, dtype=_COLUMNS)

    def start(self, slot: int, choice: Choice) -> None:
        """Take a slot's numbers, in place of its former ones."""
        missing = slot + 1 - len(self._columns)
        if missing > 0:
            # Doubled, so that few slots cost a copy.
            missing = max(missing, len(self._columns))
            self._columns = np.pad(self._columns, (0, missing))
        temperature = 0.0 if choice.is_greedy else choice.sampling.temperature
        self._columns[slot] = choice.plain_from, choice.seed, temperature

    def find(
        self, slots: NDArray[np.int64], num_outputs: NDArray[np.int64]
    ) -> PlainRows | None:
        """Return the numbers of rows; None if one of them is not plain (Choice.plain_from).

        Args:
          slots, num_outputs: (num_rows,) int64, of the rows; output tokens so far
        """
        rows = self._columns[slots]
        if (rows["plain_from"] > num_outputs).any():
            return None
        return make_plain(rows["temperature"], rows["seed"], num_outputs)


def make_plain(
    temperatures: NDArray[np.float32],
    seeds: NDArray[np.uint64],
    num_outputs: NDArray[np.int64],
) -> PlainRows:
    """Return the numbers of plain rows.

    Args:
      temperatures: (num_rows,) float32; 0 for greedy rows
      seeds: (num_rows,) uint64
      num_outputs: (num_rows,) int64, output tokens so far
    """
    keys = np.zeros(len(temperatures), dtype=np.int64)
    (drawn,) = temperatures.nonzero()
    if len(drawn):
        keys[drawn] = make_keys(seeds[drawn], num_outputs[drawn])
    return PlainRows(temperatures=np.ascontiguousarray(temperatures), keys=keys)
