"""Positions for models whose rotary embeddings place images in a plane.

    "a red [6 vectors of 2 x 3] dog"    time    0 1 2 2 2 2 2 2 5
                                        height  0 1 2 2 2 3 3 3 5
                                        width   0 1 2 3 4 2 3 4 5

A token has the same number on all three axes. A vector of an image has the position of
the image's beginning as its time; its height and width are its row and column, counted
from there. The text after an image continues behind the longer side of the image, so all
later tokens are shifted by the same number.

These positions rotate queries and keys, and have no other use. The cache keeps keys and
values at their places in the sequence.

Source: Wang et al. 2024 (Qwen2-VL), section 2.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...types.plan import SlotStart, StepPlan
from ..device.tensors import read_tensor
from ..step.layout import StepInputs


class GridPositions:
    """The shifted positions of the slots whose prompts have images.

    Args:
      merge_size: patches along each side of an image that become one vector.
    """

    def __init__(self, merge_size: int) -> None:
        self._merge_size = merge_size
        self._slots: dict[int, _Shifts] = {}

    def start(self, start: SlotStart) -> None:
        """Compute a sequence's shifts, in place of its slot's former ones."""
        self._slots.pop(start.slot, None)
        if any(item.kind == "image" for item in start.embedded):
            self._slots[start.slot] = _Shifts(start, self._merge_size)

    def place(self, plan: StepPlan, inputs: StepInputs) -> Tensor | None:
        """Return the positions of a step's tokens.

        Returns:
          (3, 1, num_tokens) int64: time, height and width; None if the step has no image and
          no text after one
        """
        if not self._slots:
            return None
        indices, shifts = [], []
        for row, first in zip(plan.rows, inputs.first_tokens):
            if (slot := self._slots.get(row.slot)) is not None:
                indices.append(torch.arange(first, first + row.num_tokens))
                shifts.append(slot.read(row.start, row.end))
        if not shifts:
            return None
        device = inputs.position_ids.device
        return inputs.position_ids.repeat(3, 1, 1).index_add_(
            2,
            torch.cat(indices).to(device, non_blocking=True),
            # (3, 1, num_shifted)
            torch.cat(shifts, dim=1)[:, None].to(device, non_blocking=True),
        )


class _Shifts:
    """The position of each token of a slot, minus its place in the sequence."""

    def __init__(self, start: SlotStart, merge_size: int) -> None:
        images = [item for item in start.embedded if item.kind == "image"]
        # (3, end of the last image); text after that has the same shift on all axes.
        self._shifts = torch.zeros((3, images[-1].runs[-1][1]), dtype=torch.int64)
        cursor, position = 0, 0
        for image in images:
            begin, end = image.runs[0][0], image.runs[-1][1]
            self._shifts[:, cursor:begin] = position - cursor
            position += begin - cursor
            grid = read_tensor(image.tensors["image_grid_thw"]).flatten()
            frames, height, width = grid.tolist()
            height, width = height // merge_size, width // merge_size
            plane = _number(frames, height, width)[:, : end - begin]
            self._shifts[:, begin : begin + plane.shape[1]] = (
                plane + position - torch.arange(begin, begin + plane.shape[1])
            )
            position += max(height, width)
            cursor = end
        self._rest = position - cursor

    def read(self, begin: int, end: int) -> Tensor:
        """Return the shifts of the positions [begin, end), (3, end - begin)."""
        known = self._shifts[:, begin:end]
        rest = known.new_full((3, end - begin - known.shape[1]), self._rest)
        return torch.cat((known, rest), dim=1)


def _number(frames: int, height: int, width: int) -> Tensor:
    """Number an image's vectors by frame, row and column, (3, num_vectors)."""
    axes = [torch.arange(size) for size in (frames, height, width)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1)
