"""The numbers of all slots by which rows choose their next tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..step.plain import PlainRows
from .choice import SETTINGS, Choice
from .draw import make_keys

# In the order of Choice.columns.
_COLUMNS: dict[str, type[np.generic]] = {
    **dict.fromkeys(SETTINGS, np.float64),
    "has_rules": np.bool_,
    "seed": np.uint64,
    # Outputs from which captured steps may choose.
    "begin": np.int64,
}

# Most servers have no more slots.
_FEW_SLOTS = 256

# Returns a column of rows, (num_rows,), by its name. Most steps need few of them.
_Take = Callable[[str], NDArray[Any]]


class PlainColumns:
    """The numbers of all slots, so that a step need not ask each of its rows."""

    def __init__(self) -> None:
        # Arrays of their own, because numpy takes rows of several types one by one.
        self._columns: dict[str, NDArray[Any]] = {
            name: np.zeros(_FEW_SLOTS, dtype) for name, dtype in _COLUMNS.items()
        }

    def start(self, slot: int, choice: Choice) -> None:
        """Take a slot's numbers, in place of its former ones."""
        num_slots = len(self._columns["begin"])
        if slot >= num_slots:
            # Doubled, so that few slots cost a copy.
            missing = max(slot + 1 - num_slots, num_slots)
            self._columns = {
                name: np.pad(column, (0, missing))
                for name, column in self._columns.items()
            }
        for column, number in zip(self._columns.values(), choice.columns):
            column[slot] = number

    def find(
        self, slots: NDArray[np.int64], num_outputs: NDArray[np.int64]
    ) -> PlainRows | None:
        """Return the numbers of rows; None if one of them needs more than these.

        Args:
          slots, num_outputs: (num_rows,) int64, of the rows; output tokens so far
        """
        if (self._columns["begin"][slots] > num_outputs).any():
            return None
        return _make_plain(lambda name: self._columns[name][slots], num_outputs)


def list_plain(choices: Sequence[Choice], num_outputs: Sequence[int]) -> PlainRows:
    """Return the numbers of rows, whatever else decides about them."""
    numbers = zip(*[each.columns for each in choices], strict=True)
    columns = dict(zip(_COLUMNS, numbers))
    return _make_plain(
        lambda name: np.array(columns[name], dtype=_COLUMNS[name]),
        np.array(num_outputs, dtype=np.int64),
    )


def _make_plain(take: _Take, num_outputs: NDArray[np.int64]) -> PlainRows:
    temperatures = take("temperature")
    keys = np.zeros(len(temperatures), dtype=np.int64)
    (drawn,) = temperatures.nonzero()
    if len(drawn):
        keys[drawn] = make_keys(take("seed")[drawn], num_outputs[drawn])
    return PlainRows(
        temperatures=temperatures.astype(np.float32),
        keys=keys,
        settings=_list_settings(take, keys) if take("has_rules").any() else None,
    )


def _list_settings(take: _Take, keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return PlainRows.settings; whole numbers of 32 bits are exact."""
    words = keys.view(np.uint64)
    settings = [take(name) for name in SETTINGS]
    settings += [words & 0xFFFFFFFF, words >> 32]
    return np.stack(settings, axis=1, dtype=np.float64, casting="unsafe")
