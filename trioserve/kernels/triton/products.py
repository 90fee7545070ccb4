"""The kernels of products with weights in fewer bits than 16, called with tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .multiply import add_splits, multiply, restore
from .stored import StoredWeights
from .tiles import count_splits
from .widths import round_side

# Outputs and inputs of a program, and most tokens. Usual choices, not measured on a GPU yet.
_OUTPUTS = 64
_INPUTS = 128
_MOST_TOKENS = 128

# From so many tokens on, weights are dequantised for another product. Writing and reading
# numbers of 16 bits takes as long as an H100 takes for a product of some 400 tokens at half of
# its rate; decodes of up to 256 sequences do without. Not measured yet.
DEQUANTISED_TOKENS = 257

# Numbers of tokens that need each of the programs.
SIZES = (1, 32, 64, 128)

# A split of fewer inputs is not worth its program.
_LEAST_INPUTS = 512

# Outputs of a program of `add_splits`, and of `restore`.
_ADDED = 1024
_RESTORED = 32


def multiply_stored(
    given: Tensor, stored: StoredWeights, bias: Tensor | None, num_cores: int
) -> Tensor:
    """Multiply tokens by weights, which are dequantised on the way.

    For up to 128 tokens, the sums are divided in a way that depends on the weights alone.

    Args:
      given: (num_tokens, num_inputs), contiguous but for the stride of tokens
      bias: (num_outputs,)
      num_cores: multiprocessors of the device.

    Returns:
      (num_tokens, num_outputs), in the type of `given`
    """
    num_tokens, num_inputs = given.shape
    size = _choose_size(num_tokens, given.dtype, stored.format)
    num_tiles = -(-num_tokens // size.tokens)
    num_blocks = -(-stored.num_outputs // size.outputs)
    most = max(1, num_inputs // _LEAST_INPUTS)
    counted = 1 if num_tokens <= _MOST_TOKENS else num_tiles
    splits = min(most, count_splits(num_blocks * counted, num_cores))
    split_inputs = -(-num_inputs // (splits * size.inputs)) * size.inputs
    output = given.new_empty((num_tokens, stored.num_outputs))
    parts = output
    if splits > 1:
        parts = given.new_empty((splits, *output.shape), dtype=torch.float32)
    multiply[num_blocks, num_tiles, splits](
        given,
        *(stored.codes, stored.scales, stored.zeros, stored.order),
        bias,
        parts,
        num_tokens,
        stored.num_outputs,
        num_inputs,
        given.stride(0),
        stored.codes.stride(0),
        stored.scales.stride(0),
        split_inputs,
        FORMAT=stored.format,
        GROUP=stored.group,
        HAS_ZEROS=stored.zeros is not None,
        HAS_ORDER=stored.order is not None,
        HAS_BIAS=bias is not None and splits == 1,
        TOKENS=size.tokens,
        OUTPUTS=size.outputs,
        INPUTS=size.inputs,
        # More warps would share the columns, too, and dequantise the same weights.
        IS_TURNED=size.warps == 4 and stored.format != "mxfp4",
        num_warps=size.warps,
        num_stages=size.stages,
    )
    if splits > 1:
        add_splits[num_tokens, -(-stored.num_outputs // _ADDED)](
            parts,
            bias,
            output,
            num_tokens,
            stored.num_outputs,
            SPLITS=splits,
            HAS_BIAS=bias is not None,
            OUTPUTS=_ADDED,
        )
    return output


class _Size(NamedTuple):
    """The size of a program of `multiply`.

    Attributes:
      inputs: that are read at a time.
      warps: of 32 threads, which share the program.
      stages: reads that are under way at once.
    """

    tokens: int
    outputs: int
    inputs: int
    warps: int
    stages: int


def _choose_size(num_tokens: int, dtype: torch.dtype, format: str) -> _Size:
    """Return a size whose numbers stay in registers, and in 99 kB of shared memory.

    tests/kernels/triton/test_compile.py checks it. The choice is not measured on a GPU yet.
    """
    if dtype == torch.float32:
        # Exact float32 has no tensor cores: each thread keeps whole rows and columns.
        return _Size(16, 32, 64, 4, 3)
    tokens = min(_MOST_TOKENS, round_side(num_tokens))
    # On 8.x, mxfp4 would need more registers than four warps have.
    warps = 4 if tokens <= (16 if format == "mxfp4" else 64) else 8
    return _Size(tokens, _OUTPUTS, _INPUTS, warps, 3 if tokens <= 64 else 2)


def restore_stored(stored: StoredWeights, output: Tensor) -> None:
    """Dequantise weights.

    Args:
      output: (num_outputs, num_inputs), contiguous; is overwritten
    """
    num_outputs, num_inputs = stored.shape
    restore[-(-num_outputs // _RESTORED), -(-num_inputs // _INPUTS)](
        *(stored.codes, stored.scales, stored.zeros, stored.order),
        output,
        num_outputs,
        num_inputs,
        stored.codes.stride(0),
        stored.scales.stride(0),
        FORMAT=stored.format,
        GROUP=stored.group,
        HAS_ZEROS=stored.zeros is not None,
        HAS_ORDER=stored.order is not None,
        OUTPUTS=_RESTORED,
        INPUTS=_INPUTS,
    )
