"""Inputs of products in eight bits, float8_e4m3fn, as weights of the format fp8 have them.

A token has a scale of its own, or one for each group of its inputs, so its numbers do not depend
on the tokens beside it. The largest number is exact: in many models it decides the output. With
powers of two as scales, the default model's perplexity rises by a third more.

Numbers are rounded by operations on bits, as in read_tile.py.
"""

from __future__ import annotations

import torch
from torch import Tensor
import triton
import triton.language as tl

from ..stored import StoredWeights
from .follow import follow, may_follow
from .widths import round_up

# Numbers that a program reads at a time; a usual choice, not measured on a GPU yet.
_MOST_NUMBERS = 8192

# cuBLAS reads scales of groups in 16 bytes, one token after the other.
_TOKENS = 4

# From so many tokens on, `multiply_rounded` is faster than `multiply_stored`, by an H200: at 64
# both take as long, and at 256 it takes less than half of the time.
ROUNDED_TOKENS = 65

# torch._scaled_mm multiplies matrices whose sides are multiples of it.
SIDE = 16


def round_tokens(given: Tensor, group: int) -> Tensor:
    """Round tokens to eight bits, and return them as numbers of their type.

    Args:
      given: (num_tokens, num_inputs) bfloat16, contiguous but for the stride of tokens
      group: inputs that share a scale, 0 or 128; 0 is all.

    Returns:
      (num_tokens, num_inputs)
    """
    output = torch.empty(given.shape, dtype=given.dtype, device=given.device)
    _launch(given, output, None, group)
    return output


def multiply_rounded(
    given: Tensor, stored: StoredWeights, factors: Tensor, bias: Tensor | None
) -> Tensor:
    """Multiply tokens, rounded to eight bits, by weights in FP8: torch._scaled_mm does it.

    Args:
      given: (num_tokens, num_inputs) bfloat16, as in `round_tokens`
      stored: its outputs are a multiple of SIDE; each has one scale or one for 128 inputs.
      factors: of `find_factors`.
      bias: (num_outputs,) bfloat16

    Returns:
      (num_tokens, num_outputs) bfloat16

    Raises:
      RuntimeError, ValueError: the device does not multiply numbers of eight bits, or not with
        such scales. torch has other classes for other devices.
    """
    # The order of the inputs is that of the weights' bytes, so it changes no sum.
    weights = stored.codes.view(torch.float8_e4m3fn)
    codes, scales = round_to_codes(given, weights.shape[1], stored.group)
    # The accumulators of tensor cores alone would keep 14 bits of a sum.
    output = torch._scaled_mm(
        codes,
        weights.T,
        scales,
        factors,
        bias=bias,
        out_dtype=given.dtype,
        use_fast_accum=False,
    )
    return output[: len(given)]


def round_to_codes(given: Tensor, length: int, group: int) -> tuple[Tensor, Tensor]:
    """Round tokens to eight bits.

    Args:
      given, group: as in `round_tokens`.
      length: of the rows of weights, with their padding.

    Returns:
      codes   (rows, length) float8_e4m3fn, in the order of the bytes of weights, and zeros
      scales  (rows, num_groups) float32, whose groups are `rows` apart
      With groups, there may be rows without numbers behind the tokens.
    """
    num_tokens = len(given)
    rows = -(-num_tokens // _TOKENS) * _TOKENS if group else num_tokens
    codes = given.new_empty((rows, length), dtype=torch.uint8)
    num_groups = length // group if group else 1
    scales = given.new_empty((num_groups, rows), dtype=torch.float32)
    _launch(given, codes, scales, group)
    # One column has no stride, but torch asks for one.
    scales = scales.T if group else scales.view(rows, 1)
    return codes.view(torch.float8_e4m3fn), scales


def find_factors(stored: StoredWeights) -> Tensor | None:
    """Return the scales of weights as torch._scaled_mm reads them; None if it cannot.

    Returns:
      (num_groups, num_outputs) float32
    """
    is_known = stored.format == "fp8" and stored.group in (0, 128)
    if not is_known or stored.order is not None or stored.num_outputs % SIDE:
        return None
    return stored.scales.float().T.contiguous()


def _launch(given: Tensor, output: Tensor, scales: Tensor | None, group: int) -> None:
    num_tokens, num_inputs = given.shape
    length = output.shape[1]
    block = max(128, min(_MOST_NUMBERS, round_up(length)))
    round_inputs[num_tokens,](
        *(given, output, scales),
        num_inputs,
        length,
        given.stride(0),
        0 if scales is None else scales.stride(0),
        GROUP=group,
        HAS_CODES=scales is not None,
        BLOCK=block,
        num_warps=8 if block > 2048 else 4,
    )


# The stride of scales is the number of tokens.
@may_follow
@triton.jit(do_not_specialize=["scales_stride"])
def round_inputs(
    given,
    output,
    scales,
    num_inputs,
    length,
    given_stride,
    scales_stride,
    GROUP: tl.constexpr,
    HAS_CODES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Round tokens; the grid is (tokens,).

    Args:
      given: (num_tokens, num_inputs), whose tokens are a stride apart
      output: (num_tokens, length); codes as the words of stored.py have them, with zeros behind
        the inputs, if HAS_CODES
      scales: (num_groups, tokens) float32, whose groups are a stride apart, if HAS_CODES
      GROUP: inputs that share a scale, a divisor of BLOCK; 0 is all.
      BLOCK: numbers that are read at a time.
    """
    follow()
    token = tl.program_id(0).to(tl.int64)
    given += token * given_stride
    output += token * length
    peak = 0.0
    if GROUP == 0:
        for begin in range(0, num_inputs, BLOCK):
            places = begin + tl.arange(0, BLOCK)
            numbers = tl.load(given + places, mask=places < num_inputs, other=0.0)
            peak = tl.maximum(peak, tl.max(tl.abs(numbers.to(tl.float32)), 0))
        if HAS_CODES:
            tl.store(scales + token, _find_scale(peak))
    for begin in range(0, length, BLOCK):
        places = begin + tl.arange(0, BLOCK)
        inputs = places
        if HAS_CODES:
            # The input of each byte of a word; see stored.py.
            inputs = places // 64 * 64 + places % 2 * 32 + places % 64 // 4 * 2
            inputs += places // 2 % 2
        inside = inputs < num_inputs
        numbers = tl.load(given + inputs, mask=inside, other=0.0).to(tl.float32)
        sizes = tl.abs(numbers)
        if GROUP == 0:
            scale = _find_scale(peak)
        else:
            PARTS: tl.constexpr = BLOCK // GROUP
            scale = _find_scale(tl.max(tl.reshape(sizes, (PARTS, GROUP)), 1))
            if HAS_CODES:
                groups = begin // GROUP + tl.arange(0, PARTS)
                tl.store(
                    scales + groups * scales_stride + token,
                    scale,
                    mask=groups * GROUP < length,
                )
            scale = tl.broadcast_to(tl.expand_dims(scale, 1), (PARTS, GROUP))
            scale = tl.reshape(scale, (BLOCK,))
        is_number = sizes < float("inf")
        # A division may be wrong in the last bit.
        sizes = tl.where(is_number, tl.minimum(sizes / scale, 448.0), 0.0)
        # The exponent of the smallest normal number is -6; three bits are behind the point.
        powers = tl.maximum(sizes.to(tl.int32, bitcast=True) >> 23, 121)
        steps = sizes * ((257 - powers) << 23).to(tl.float32, bitcast=True)
        # To the nearest whole number, to the even one of two: the sum has no bits behind it.
        steps = (steps + 12582912.0) - 12582912.0
        if HAS_CODES:
            codes = ((powers - 121) << 3) + steps.to(tl.int32)
            # All others are not a number.
            codes = tl.where(is_number, codes, 0x7F)
            codes = tl.where(numbers < 0, codes + 0x80, codes)
            tl.store(output + places, codes.to(tl.uint8), mask=places < length)
        else:
            rounded = steps * ((powers - 3) << 23).to(tl.float32, bitcast=True) * scale
            rounded = tl.where(numbers < 0, -rounded, rounded)
            rounded = tl.where(is_number, rounded, numbers)
            tl.store(output + places, rounded.to(output.dtype.element_ty), mask=inside)


@triton.jit
def _find_scale(peak):
    """Return the scale by which the largest absolute number becomes 448."""
    return tl.maximum(peak / 448.0, 1e-12)
