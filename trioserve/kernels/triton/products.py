"""The kernels of products of few tokens, called with tensors.

Weights have fewer bits than 16, or 16: then the kernel begins to read them while the kernels
before it end, which cuBLAS does not.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..stored import StoredWeights
from .follow import can_follow, find_capability
from .multiply import multiply, restore
from .widths import round_side

# Tokens of a program.
_MOST_TOKENS = 128

# From so many tokens on, weights are dequantised for cuBLAS, by an H200: at 128 tokens that takes
# a third more time, and with more of them the kernel would dequantise twice.
DEQUANTISED_TOKENS = 129

# Numbers of tokens that need each of the programs.
SIZES = (1, 32, 64, 128)

# Up to so many tokens, plain weights are multiplied here.
FEW_TOKENS = 16

# A split of fewer inputs is not worth its program.
_LEAST_INPUTS = 256

# Lines of a row that a program fetches while the kernels before it end.
_LINES = 4

# Outputs and inputs of a program of `restore`.
_RESTORED, _INPUTS = 32, 128

# Places in a matrix have 32 bits in the kernel.
_MOST_NUMBERS = 2**31


def can_multiply(weight: Tensor) -> bool:
    """Say whether few tokens are multiplied faster here than by cuBLAS.

    Args:
      weight: (num_outputs, num_inputs)
    """
    return (
        can_follow()
        and weight.is_cuda
        and weight.dtype in (torch.bfloat16, torch.float16)
        and weight.is_contiguous()
        and weight.numel() < _MOST_NUMBERS
    )


class Gates(NamedTuple):
    """The first half of a product's outputs are gates of the second.

    Attributes:
      activation: as in weigh_gates (steps.py).
      scale: factor of gates before it.
    """

    activation: str
    scale: float = 1.0


class Splits(NamedTuple):
    """What divides the sums of one weight; no other launch at the same time has it.

    Attributes:
      num_cores: multiprocessors of the device.
      tickets: int32, zeros, by which programs count the splits that are done.
    """

    num_cores: int
    tickets: Tensor


def make_splits(num_outputs: int, num_cores: int, device: torch.device) -> Splits:
    """Make the Splits of a weight."""
    # A block has 32 outputs or more, and there are at most 16 blocks of tokens.
    count = max(16, num_outputs)
    return Splits(num_cores, torch.zeros(count, dtype=torch.int32, device=device))


def multiply_plain(
    given: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    splits: Splits,
    gates: Gates | None = None,
) -> Tensor:
    """Multiply at most FEW_TOKENS tokens by weights of 16 bits.

    A token's numbers do not depend on the tokens beside it.

    Args:
      weight: (num_outputs, num_inputs), contiguous
      Others: as in `multiply_stored`.
    """
    return _multiply(given, weight, bias, splits, gates, FORMAT="plain")


def multiply_stored(
    given: Tensor,
    stored: StoredWeights,
    bias: Tensor | None,
    splits: Splits,
    gates: Gates | None = None,
) -> Tensor:
    """Multiply tokens by weights, which are dequantised on the way.

    A token has the same numbers alone and in batches of up to 16.

    Args:
      given: (num_tokens, num_inputs), contiguous but for the stride of tokens
      bias: (num_outputs,)
      gates: activates them, and returns numbers times gates.

    Returns:
      (num_tokens, num_outputs), or half as many with gates, in the type of `given`
    """
    return _multiply(
        given,
        stored.codes,
        bias,
        splits,
        gates,
        stored.scales,
        stored.zeros,
        stored.order,
        FORMAT=stored.format,
        GROUP=stored.group,
    )


def _multiply(
    given: Tensor,
    codes: Tensor,
    bias: Tensor | None,
    splits: Splits,
    gates: Gates | None,
    scales: Tensor | None = None,
    zeros: Tensor | None = None,
    order: Tensor | None = None,
    *,
    FORMAT: str,
    GROUP: int = 0,
) -> Tensor:
    """Launch the kernel; see `multiply` (multiply.py)."""
    (num_tokens, num_inputs), num_outputs = given.shape, len(codes)
    size = _choose_size(num_tokens, given.dtype, FORMAT, GROUP)
    num_tiles = -(-num_tokens // size.tokens)
    num_blocks = -(-num_outputs // size.outputs)
    # On an H200, a quarter more programs than multiprocessors fill the memory's time with reads, but
    # small ones that dequantise wait for their own instructions meanwhile.
    quarters = 14 if FORMAT != "plain" and size.tokens <= 32 else 5
    count = _count_splits(num_blocks, num_inputs, splits.num_cores, quarters)
    split_inputs = -(-num_inputs // (count * size.inputs)) * size.inputs
    # None is empty.
    count = -(-num_inputs // split_inputs)
    width = num_outputs if gates is None else num_outputs // 2
    output = given.new_empty((num_tokens, width))
    parts = None
    if count > 1:
        shape = count, num_tokens, num_outputs
        parts = given.new_empty(shape, dtype=torch.float32)
    multiply[num_blocks, num_tiles, count](
        *(given, codes, scales, zeros, order, bias, parts, splits.tickets, output),
        num_tokens,
        num_outputs,
        num_inputs,
        given.stride(0),
        codes.stride(0),
        0 if scales is None else scales.stride(0),
        split_inputs,
        1.0 if gates is None else gates.scale,
        FORMAT=FORMAT,
        GROUP=GROUP,
        HAS_ZEROS=zeros is not None,
        HAS_ORDER=order is not None,
        HAS_BIAS=bias is not None,
        HAS_SPLITS=count > 1,
        TOKENS=size.tokens,
        OUTPUTS=size.outputs,
        INPUTS=size.inputs,
        IS_TURNED=size.is_turned,
        LINES=_LINES if can_follow() else 0,
        IS_WHOLE=num_inputs % size.inputs == 0,
        ACTIVATION=None if gates is None else gates.activation,
        num_warps=size.warps,
        num_stages=size.stages,
    )
    return output


def _count_splits(
    num_programs: int, num_inputs: int, num_cores: int, quarters: int
) -> int:
    """Return the parts into which inputs are divided, so that a device has programs enough.

    Args:
      quarters: a fourth of the least number of programs on a multiprocessor.
    """
    splits = 1
    while 4 * num_programs * splits < quarters * num_cores:
        if num_inputs < 2 * splits * _LEAST_INPUTS:
            break
        splits *= 2
    return splits


class _Size(NamedTuple):
    """The size of a program of `multiply`.

    Attributes:
      inputs: that are read at a time.
      warps: of 32 threads, which share the program.
      stages: reads that are under way at once.
      is_turned: as IS_TURNED. Each warp has 16 outputs or more, so that no two dequantise the
        same ones.
    """

    tokens: int
    outputs: int
    inputs: int
    warps: int
    stages: int
    is_turned: bool = True


def _choose_size(num_tokens: int, dtype: torch.dtype, format: str, group: int) -> _Size:
    """Return a size whose numbers stay in registers and in shared memory.

    tests/kernels/triton/test_compile.py checks it. They are among the best on an H200 for
    products of 8B; before 9.0 they are not measured.
    """
    if dtype == torch.float32:
        # Exact float32 has no tensor cores: each thread keeps whole rows and columns.
        return _Size(16, 32, 64, 4, 3, False)
    tokens = min(_MOST_TOKENS, round_side(num_tokens))
    if tokens <= 32:
        stages = 4 if format == "plain" else 3 if group else 5
        return _Size(tokens, 64, 128, 4, stages)
    # On 8.x, mxfp4 would need more registers than the warps have.
    is_turned = format != "mxfp4"
    # With 64 inputs, int4 goes through shared memory. Only on 9.x and 10.x, whose tensor cores
    # read tokens from there, registers have room for 128.
    has_room = 90 <= find_capability() < 120
    is_wide = tokens <= 64 or (format == "int4" and has_room)
    return _Size(tokens, 128, 128 if is_wide else 64, 8, 3, is_turned)


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
