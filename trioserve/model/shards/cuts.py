"""The part of one weight that a shard has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...kernels.stored import NotStored, StoredWeights


class WrongShape(ValueError):
    """Raised when a file has a weight of another shape than its model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The part of one weight that a shard has.

    Args:
      axis: that is cut, counted from the last one: a file may hold the weight of one expert
        where the model has a weight of all; None cuts nothing.
      kept: places on the axis; of each part, if there are several.
      size: all places of one part.
      num_parts: weights that follow each other on the axis. A file may hold each of them by
        itself.
      is_kept: False is a weight of zeros, because another shard has it.
    """

    axis: int | None = None
    kept: range = range(0)
    size: int = 0
    num_parts: int = 1
    is_kept: bool = True

    def shape_part(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the part of a model's whole weight."""
        part = list(shape)
        if self.axis is not None:
            part[self.axis] = len(self.kept) * self.num_parts
        return tuple(part)

    def take(self, name: str, whole: Any) -> Tensor:
        """Read the part of a weight.

        Args:
          name: for errors.
          whole: can be sliced to tensors: a tensor, or a slice of a file.

        Raises:
          WrongShape
        """
        if not self.is_kept:
            return torch.zeros_like(whole[...])
        if self.axis is None:
            return torch.as_tensor(whole[...])
        shape = list(whole.shape if isinstance(whole, Tensor) else whole.get_shape())
        before = (slice(None),) * (len(shape) + self.axis)
        parts = [
            whole[(*before, slice(begin + self.kept.start, begin + self.kept.stop))]
            for begin in self._list_begins(name, shape[self.axis])
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=self.axis)

    def take_stored(self, name: str, whole: StoredWeights) -> StoredWeights:
        """Return the part of a weight in fewer bits, (num_outputs, num_inputs).

        Args:
          name: for errors.

        Raises:
          NotStored: it cannot be cut there.
          WrongShape
        """
        if not self.is_kept or self.axis not in (-1, -2):
            raise NotStored("a cut that is not one of its inputs or outputs")
        begins = self._list_begins(name, whole.shape[self.axis])
        parts = [
            range(begin + self.kept.start, begin + self.kept.stop) for begin in begins
        ]
        if self.axis == -2:
            places = [place for part in parts for place in part]
            # This copies: the rest of the weight shall take no memory.
            return whole.take(torch.tensor(places, device=whole.codes.device))
        assert len(parts) == 1, "products that read different inputs are apart"
        return whole.take_inputs(parts[0])

    def _list_begins(self, name: str, size: int) -> list[int]:
        if size == self.size * self.num_parts:
            return [part * self.size for part in range(self.num_parts)]
        # Several weights of a file become one weight of the model.
        if size == self.size:
            return [0]
        raise WrongShape(f"{name} has {size} places on axis {self.axis}")
