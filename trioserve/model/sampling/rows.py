"""Tables on the device that have rows only for slots that need one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..device.tensors import send_ids


class SlotRows:
    """The rows that belong to slots.

    Attributes:
      num_rows: how many rows the tables must have.
    """

    def __init__(self, device: torch.device) -> None:
        self.num_rows = 0
        self._device = device
        self._row_of_slot: dict[int, int] = {}
        self._free_rows: list[int] = []

    def take(self, slot: int) -> int:
        """Give a row to a slot that has none; the row may hold another slot's old values."""
        assert slot not in self._row_of_slot, "a slot has at most one row"
        if not self._free_rows:
            self._free_rows.append(self.num_rows)
            self.num_rows += 1
        self._row_of_slot[slot] = self._free_rows.pop()
        return self._row_of_slot[slot]

    def release(self, slot: int) -> None:
        """Free the row of a slot, if it has one."""
        if slot in self._row_of_slot:
            self._free_rows.append(self._row_of_slot.pop(slot))

    def has_any(self, slots: list[int]) -> bool:
        """Return whether one of these slots has a row."""
        # Most steps have none.
        return bool(self._row_of_slot) and not self._row_of_slot.keys().isdisjoint(
            slots
        )

    def find_places(self, slots: list[int]) -> list[int]:
        """Return the places of slots with rows among the slots of a step."""
        # This is the case in most steps.
        if not self._row_of_slot:
            return []
        return [i for i, slot in enumerate(slots) if slot in self._row_of_slot]

    def locate(self, slots: list[int], places: list[int]) -> tuple[Tensor, Tensor]:
        """Send the places and the rows of some slots of a step.

        Args:
          slots: all slots of the step.
          places: places among them; these slots have rows.

        Returns:
          (num_places,) int64, the places
          (num_places,) int64, their rows
        """
        rows = [self._row_of_slot[slots[place]] for place in places]
        # One transfer for both.
        both = send_ids([*places, *rows], self._device).view(2, -1)
        return both[0], both[1]


def grow(table: Tensor, shape: Sequence[int], value: int) -> Tensor:
    """Return a table with the same contents that is at least as large as `shape`.

    Args:
      value: fills new places.
    """
    sizes = [max(pair) for pair in zip(table.shape, shape, strict=True)]
    if sizes == list(table.shape):
        return table
    if sizes[0] > len(table):
        # Doubling keeps the cost of copies below the cost of the rows themselves. The
        # other dimensions soon reach their limits.
        sizes[0] = max(sizes[0], 2 * len(table))
    grown = table.new_full(sizes, value)
    grown[tuple(slice(size) for size in table.shape)].copy_(table)
    return grown
