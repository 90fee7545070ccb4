"""The numbers of all slots by which rows choose their next tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..step.plain import PlainRows
from .choice import SETTINGS, Choice
from .draw import make_keys

_COLUMNS = np.dtype(
    [
        *((name, np.float64) for name in SETTINGS),
        ("has_rules", np.bool_),
        ("seed", np.uint64),
        # Outputs from which captured steps may choose.
        ("begin", np.int64),
    ]
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
        self._columns[slot] = choice.columns

    def find(
        self, slots: NDArray[np.int64], num_outputs: NDArray[np.int64]
    ) -> PlainRows | None:
        """Return the numbers of rows; None if one of them needs more than these.

        Args:
          slots, num_outputs: (num_rows,) int64, of the rows; output tokens so far
        """
        columns = self._columns[slots]
        if (columns["begin"] > num_outputs).any():
            return None
        return _make_plain(columns, num_outputs)


def list_plain(choices: Sequence[Choice], num_outputs: Sequence[int]) -> PlainRows:
    """Return the numbers of rows, whatever else decides about them."""
    columns = np.array([each.columns for each in choices], dtype=_COLUMNS)
    return _make_plain(columns, np.array(num_outputs, dtype=np.int64))


def _make_plain(columns: NDArray[np.void], num_outputs: NDArray[np.int64]) -> PlainRows:
    keys = np.zeros(len(columns), dtype=np.int64)
    (drawn,) = columns["temperature"].nonzero()
    if len(drawn):
        keys[drawn] = make_keys(columns["seed"][drawn], num_outputs[drawn])
    return PlainRows(
        temperatures=columns["temperature"].astype(np.float32),
        keys=keys,
        settings=_list_settings(columns, keys) if columns["has_rules"].any() else None,
    )


def _list_settings(
    columns: NDArray[np.void], keys: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return PlainRows.settings; whole numbers of 32 bits are exact."""
    words = keys.view(np.uint64)
    settings = [columns[name] for name in SETTINGS]
    settings += [words & 0xFFFFFFFF, words >> 32]
    return np.stack(settings, axis=1, dtype=np.float64, casting="unsafe")
