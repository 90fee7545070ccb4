"""The weights of all experts for one product, as the kernels for GPUs read them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..stored import NotStored, StoredWeights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matrices:
    """The weights of experts, in some format of stored.py.

    Args:
      codes: (num_experts, num_outputs, ...), contiguous
      scales, zeros: (num_experts * num_outputs, num_groups), as in StoredWeights; None if
        there are none
      group: inputs that share a scale; 0 is all.
    """

    codes: Tensor
    num_inputs: int
    format: str = "plain"
    scales: Tensor | None = None
    zeros: Tensor | None = None
    group: int = 0

    @property
    def num_experts(self) -> int:
        return self.codes.shape[0]

    @property
    def num_outputs(self) -> int:
        return self.codes.shape[1]


def hold(weights: Tensor) -> Matrices:
    """Return weights, (num_experts, num_outputs, num_inputs), as kernels read them."""
    weights = weights.contiguous()
    return Matrices(codes=weights, num_inputs=weights.shape[2])


def hold_stored(stored: StoredWeights, num_experts: int) -> Matrices:
    """Return weights in fewer bits, whose experts follow each other.

    Raises:
      NotStored: their inputs are in another order.
    """
    if stored.order is not None:
        raise NotStored("inputs in another order")
    return Matrices(
        codes=stored.codes.unflatten(0, (num_experts, -1)),
        num_inputs=stored.num_inputs,
        format=stored.format,
        scales=stored.scales,
        zeros=stored.zeros,
        group=stored.group,
    )
