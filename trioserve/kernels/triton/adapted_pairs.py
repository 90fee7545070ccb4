"""The changes of experts' weights by adapters: their matrices, and the kernels called with tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .adapters import INPUT_BYTES, LEAST_INPUTS, RANK_MULTIPLE, Change
from .matrices import Matrices
from .pair_changes import shrink_pairs
from .tiles import count_splits


class PairBlocks(NamedTuple):
    """The pairs of a step, cut into blocks of one expert; see `read_block`.

    Attributes:
      order: None if each pair is a block.
      blocks: their experts alone, if each pair is a block.
      rows: most pairs of a block.
    """

    order: Tensor | None
    blocks: Tensor
    rows: int

    @property
    def num_blocks(self) -> int:
        return self.blocks.numel() if self.order is None else len(self.blocks)

    @property
    def width(self) -> int:
        """The rows of a program: a product on tensor cores has 16 at least."""
        return max(16, self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairChanges:
    """The changes of the weights of all experts for one product.

    Args:
      table: (num_slots, columns) int64, of this product; slots may be further apart
      slots: (num_tokens,) int32, of the tokens' adapters; 0 changes nothing
      width: most ranks, padded, of an adapter.
      num_cores: multiprocessors of the device.
    """

    table: Tensor
    slots: Tensor
    width: int
    num_cores: int


def lay_out_pairs(
    matrices: Sequence[tuple[Tensor, Tensor] | None],
    order: Tensor | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Change:
    """Lay out the matrices of an adapter for the weights of all experts.

    Args:
      matrices: a, (rank, num_inputs), and b, (num_outputs, rank), of each expert; None if it has
        no change.
      order: (num_outputs,), the places of the outputs of the kernels among those of an expert;
        None if they are in order
    """
    present = [each for each in matrices if each is not None]
    num_chunks = max(-(-len(a) // RANK_MULTIPLE) for a, _ in present)
    num_ranks = num_chunks * RANK_MULTIPLE
    first_a, first_b = present[0]
    a = torch.zeros(len(matrices), num_ranks, first_a.shape[1], dtype=dtype)
    b = torch.zeros(len(matrices), len(first_b), num_ranks, dtype=dtype)
    for expert, each in enumerate(matrices):
        if each is not None:
            rank = len(each[0])
            a[expert, :rank] = each[0]
            b[expert, :, :rank] = each[1] if order is None else each[1][order]
    b = b.unflatten(2, (num_chunks, RANK_MULTIPLE)).transpose(1, 2)
    return Change(
        a=a.to(device), b=b.to(device).contiguous(), scale=None, ends=[num_chunks]
    )


def shrink(
    given: Tensor,
    blocks: PairBlocks,
    changes: PairChanges,
    weights: Matrices,
    num_pairs: int,
    num_sharing: int,
) -> Tensor:
    """Multiply what experts read by the first matrices of adapters.

    Args:
      given: (num_pairs // num_sharing, num_inputs), contiguous
      weights: that the adapters change.

    Returns:
      (splits, num_pairs, width) float32, as `expand_pairs` reads them
    """
    num_inputs = weights.num_inputs
    step = INPUT_BYTES // given.itemsize
    most = max(1, num_inputs // LEAST_INPUTS)
    splits = min(most, count_splits(blocks.num_blocks, changes.num_cores))
    shape = splits, num_pairs, changes.width
    parts = given.new_empty(shape, dtype=torch.float32)
    shrink_pairs[blocks.num_blocks, splits](
        given,
        blocks.order,
        blocks.blocks,
        changes.table,
        changes.slots,
        parts,
        changes.table.stride(0),
        num_pairs,
        changes.width,
        -(-num_inputs // (splits * step)),
        NUM_EXPERTS=weights.num_experts,
        NUM_CHOSEN=num_pairs // len(changes.slots),
        NUM_SHARING=num_sharing,
        NUM_INPUTS=num_inputs,
        ROWS=blocks.width,
        INPUTS=step,
        IS_GROUPED=blocks.order is not None,
        # As in `change_outputs`.
        num_warps=4 if blocks.width <= RANK_MULTIPLE else 8,
    )
    return parts
