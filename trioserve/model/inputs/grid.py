"""Positions for models whose rotary embeddings place images in a plane.

    "a red [6 vectors of 2 x 3] dog"    time    0 1 2 2 2 2 2 2 5
                                        height  0 1 2 2 2 3 3 3 5
                                        width   0 1 2 3 4 2 3 4 5

A token has one number on all three axes. A vector of an image has the image's beginning
as its time, and its row and column counted from there. What follows the image goes on
behind its longer side, so that every later token is shifted by the same number.

Keys and values stay where the sequence has them: these positions turn queries and
keys, and nothing else looks at them.

Source: Wang et al. 2024 (Qwen2-VL), section 2.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...types.plan import SlotStart, StepPlan
from ..attention.layout import StepInputs
from ..tensors import read_tensor


class GridPositions:
    """The shifted positions of slots whose prompts have images.

    Args:
      merge_size: patches of an image that become one vector, along one side.
    """

    def __init__(self, merge_size: int) -> None:
        self._merge_size = merge_size
        self._slots: dict[int, _Shifts] = {}

    def start(self, start: SlotStart) -> None:
        """Work out a sequence's positions; those of the former one are forgotten."""
        self._slots.pop(start.slot, None)
        if any(item.kind == "image" for item in start.embedded):
            self._slots[start.slot] = _Shifts(start, self._merge_size)

    def place(self, plan: StepPlan, inputs: StepInputs) -> Tensor:
        """Return the positions that the step's tokens have for the model.

        Returns:
          (3, 1, num_tokens) int64: time, height and width; or inputs.position_ids,
          where all three are what they are for text
        """
        if not self._slots:
            return inputs.position_ids
        indices, shifts = [], []
        for row, first in zip(plan.rows, inputs.first_tokens):
            if (slot := self._slots.get(row.slot)) is not None:
                indices.append(torch.arange(first, first + row.num_tokens))
                shifts.append(slot.read(row.start, row.end))
        if not shifts:
            return inputs.position_ids
        device = inputs.position_ids.device
        return inputs.position_ids.repeat(3, 1, 1).index_add_(
            2,
            torch.cat(indices).to(device, non_blocking=True),
            # (3, 1, num_shifted)
            torch.cat(shifts, dim=1)[:, None].to(device, non_blocking=True),
        )


class _Shifts:
    """How far from its place in the sequence each position of a slot lies."""

    def __init__(self, start: SlotStart, merge_size: int) -> None:
        images = [item for item in start.embedded if item.kind == "image"]
        # (3, end of the last image); what follows has the same shift on all axes.
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
