"""The kernels of adapters, called with tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .low_rank import ENDS, RANKS, expand, shrink
from .tiles import AdapterTiles, count_splits

# Ranks of adapters are padded to a multiple of it.
RANK_MULTIPLE: int = RANKS.value

# Outputs of a program of `expand`, and inputs that `shrink` reads at a time, in bytes. Usual
# choices, not measured on a GPU yet.
_OUTPUTS = 128
INPUT_BYTES = 128

# Parts of a product are not worth a program below this.
LEAST_INPUTS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change of a product by one adapter.

    Args:
      a, b, scale: as low_rank.py lays them out; scale is None without it
      ends: of the chunks of each module.
    """

    a: Tensor
    b: Tensor
    scale: Tensor | None
    ends: Sequence[int]

    @property
    def num_ranks(self) -> int:
        """The ranks of all modules, padded."""
        return self.ends[-1] * RANK_MULTIPLE

    def make_line(self, num_columns: int) -> list[int]:
        """Return the line of the table for it."""
        places = [
            0 if each is None else each.data_ptr()
            for each in (self.a, self.b, self.scale)
        ]
        line = [*places, 0, *self.ends]
        return line + [0] * (num_columns - len(line))


def count_columns(num_modules: int) -> int:
    """Return the numbers in a line of a table, for products of up to so many modules."""
    columns = int(ENDS.value) + 1 + num_modules
    # Lines at multiples of 16 bytes: kernels are compiled anew for others.
    return columns + columns % 2


def lay_out_changes(
    matrices: Sequence[tuple[Tensor, Tensor] | None],
    scale: Tensor | None,
    order: Tensor | None,
    num_outputs: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> Change:
    """Lay out the matrices of an adapter for the modules of a product.

    Args:
      matrices: a, (rank, num_inputs), and b, (outputs of the module, rank), of each module;
        None if it has no change.
      scale: (outputs of all modules,) float32
      order: the places of the product's outputs among those of the modules; None if they
        are in order.
      num_outputs: of each module.
    """
    chunks = [
        0 if each is None else -(-len(each[0]) // RANK_MULTIPLE) for each in matrices
    ]
    rows = [
        torch.nn.functional.pad(
            each[0], (0, 0, 0, count * RANK_MULTIPLE - len(each[0]))
        )
        for each, count in zip(matrices, chunks)
        if each is not None
    ]
    b = torch.zeros(sum(num_outputs), max(chunks) * RANK_MULTIPLE)
    begin = 0
    for each, count in zip(matrices, num_outputs):
        if each is not None:
            b[begin : begin + count, : len(each[0])] = each[1]
        begin += count
    if order is not None:
        b = b[order]
        scale = None if scale is None else scale[order]
    b = b.unflatten(1, (-1, RANK_MULTIPLE)).transpose(0, 1)
    ends = [sum(chunks[: place + 1]) for place in range(len(chunks))]
    return Change(
        a=torch.cat(rows).to(device, dtype),
        b=b.to(device, dtype).contiguous(),
        scale=None if scale is None else scale.to(device).contiguous(),
        ends=ends,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The outputs of a product, cut into blocks of one module each.

    Attributes:
      numbers: (num_blocks, 3) int32, as `expand` reads them
      is_aligned: all blocks begin and end at multiples of 16.
    """

    numbers: Tensor
    is_aligned: bool


def cut_blocks(runs: Iterable[tuple[int, int]], device: torch.device) -> Blocks:
    """Cut the outputs of a product.

    Args:
      runs: modules, and the numbers of outputs that follow each other and are theirs.
    """
    numbers: list[tuple[int, int, int]] = []
    begin = 0
    for module, count in runs:
        end = begin + count
        numbers += [
            (first, min(_OUTPUTS, end - first), module)
            for first in range(begin, end, _OUTPUTS)
        ]
        begin = end
    return Blocks(
        numbers=torch.tensor(numbers, dtype=torch.int32, device=device),
        is_aligned=all(first % 16 == count % 16 == 0 for first, count, _ in numbers),
    )


def change_outputs(
    given: Tensor,
    output: Tensor,
    *,
    table: Tensor,
    tiles: AdapterTiles,
    blocks: Blocks,
    bias: Tensor | None,
    num_modules: int,
    width: int,
    num_cores: int,
) -> None:
    """Change the outputs of a product, in place, by the adapters of its tokens.

    Args:
      given: (num_tokens, num_inputs), contiguous but for the stride of tokens
      output: (num_tokens, num_outputs), contiguous
      table: (num_slots, columns) int64, of this product; slots may be further apart
      blocks: of the outputs.
      bias: (num_outputs,), part of the outputs
      width: most ranks of all modules, padded, of an adapter.
      num_cores: multiprocessors of the device.
    """
    num_tokens, num_inputs = given.shape
    num_tiles = len(tiles.numbers)
    step = INPUT_BYTES // given.itemsize
    most = max(1, num_inputs // LEAST_INPUTS)
    splits = min(most, count_splits(num_tiles * num_modules, num_cores))
    split_steps = -(-num_inputs // (splits * step))
    # The numbers of a large tile do not fit into the registers of fewer.
    num_warps = 4 if tiles.num_tokens <= RANK_MULTIPLE else 8
    parts = given.new_empty((splits, num_tokens, width), dtype=torch.float32)
    shrink[num_tiles, num_modules, splits](
        given,
        parts,
        table,
        tiles.numbers,
        given.stride(0),
        table.stride(0),
        num_inputs,
        num_tokens,
        width,
        split_steps,
        TOKENS=tiles.num_tokens,
        INPUTS=step,
        num_warps=num_warps,
    )
    expand[num_tiles, len(blocks.numbers)](
        output,
        parts,
        table,
        tiles.numbers,
        blocks.numbers,
        bias,
        table.stride(0),
        output.shape[1],
        num_tokens,
        width,
        splits,
        TOKENS=tiles.num_tokens,
        OUTPUTS=_OUTPUTS,
        IS_ALIGNED=blocks.is_aligned,
        HAS_BIAS=bias is not None,
        num_warps=num_warps,
    )
