"""Images whose tokens see each other, in the layers that join them.

    tokens      a  b  I  I  I  c
    positions   0  1  2  3  4  5
    key ends    1  2  5  5  5  6

A step computes such an image whole, so the ends lie within its row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...types.plan import SlotStart, StepRow
from ...types.prompt import list_image_runs


class JoinedImages:
    """The images of the slots, as far as they are not computed yet."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[tuple[int, int], ...]] = {}

    def start(self, start: SlotStart) -> None:
        """Take the images of a sequence, in place of its slot's former ones."""
        self._slots.pop(start.slot, None)
        if runs := list_image_runs(start.embedded):
            self._slots[start.slot] = runs

    @classmethod
    def at(cls, runs: tuple[tuple[int, int], ...], num_slots: int) -> JoinedImages:
        """Return images at the same positions of each slot, for a check."""
        images = cls()
        images._slots = dict.fromkeys(range(num_slots), runs)
        return images

    def find_ends(self, rows: Sequence[StepRow]) -> Tensor | None:
        """Return the ends of the keys that tokens see in layers that join images.

        Args:
          rows: in the order of the flat tokens.

        Returns:
          (num_tokens,) int32: the end of a token's image, or the place behind the token; None
          if no token lies in an image
        """
        found = {
            index: runs
            for index, row in enumerate(rows)
            if (runs := self._find_runs(row))
        }
        if not found:
            return None
        parts = []
        for index, row in enumerate(rows):
            ends = torch.arange(row.start + 1, row.end + 1, dtype=torch.int32)
            for begin, end in found.get(index, ()):
                ends[begin - row.start : end - row.start] = end
            parts.append(ends)
        return torch.cat(parts)

    def _find_runs(self, row: StepRow) -> list[tuple[int, int]]:
        """Return the images within a row; forget a slot's images behind the last one."""
        runs = self._slots.get(row.slot)
        if runs is None:
            return []
        if row.start >= runs[-1][1]:
            del self._slots[row.slot]
            return []
        inside = [run for run in runs if run[0] < row.end and run[1] > row.start]
        for begin, end in inside:
            assert row.start <= begin and end <= row.end, "an image is computed whole"
        return inside
