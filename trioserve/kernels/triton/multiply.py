"""Products with weights in fewer bits than 16, and the way back to whole numbers."""

from __future__ import annotations

import triton
import triton.language as tl

from .attend import multiply_and_add
from .read_tile import read_factors, read_tile


@triton.jit(do_not_specialize=["num_tokens"])
def multiply(
    given,
    codes,
    scales,
    zeros,
    order,
    bias,
    output,
    num_tokens,
    num_outputs,
    num_inputs,
    given_stride,
    row_length,
    num_groups,
    split_inputs,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TOKENS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    IS_TURNED: tl.constexpr,
):
    """Multiply some tokens by some outputs' weights; the grid is (outputs, tokens, splits).

    Args:
      given: (num_tokens, num_inputs), whose tokens are a stride apart
      codes, scales, zeros, row_length, num_groups: of the weights, as in `read_tile`
      order: (num_inputs,) int32, the place of each input of the weights in `given`, if
        HAS_ORDER
      bias: (num_outputs,), if HAS_BIAS
      output: (splits, num_tokens, num_outputs), in the type that it has
      split_inputs: of a split, a multiple of INPUTS.
      TOKENS, OUTPUTS: of a program.
      INPUTS: of a read.
      IS_TURNED: the weights are the first matrix of the product, so they go from registers to
        tensor cores, and each warp dequantises rows of its own.
    """
    block, tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tokens = tile * TOKENS + tl.arange(0, TOKENS)
    is_token = tokens < num_tokens
    outputs = block * OUTPUTS + tl.arange(0, OUTPUTS)
    # Beyond the last row, it is read again.
    rows = tl.minimum(outputs, num_outputs - 1)
    # Tokens may be many and their inputs wide.
    given += tokens.to(tl.int64)[:, None] * given_stride
    here = split * split_inputs
    there = tl.minimum(here + split_inputs, num_inputs)
    # Codes are exact in products of 16 bits, so scales of rows and of wide groups wait for sums.
    # With many tokens, weights take fewer instructions if two are scaled at a time.
    is_fast: tl.constexpr = scales.dtype.element_ty == given.dtype.element_ty
    IS_SCALED: tl.constexpr = GROUP != 0 and (
        GROUP < INPUTS or TOKENS > (32 if is_fast else 64)
    )
    sides: tl.constexpr = (OUTPUTS, TOKENS) if IS_TURNED else (TOKENS, OUTPUTS)
    summed = tl.zeros(sides, tl.float32)
    for begin in range(here, there, INPUTS):
        weights = read_tile(
            codes,
            scales,
            zeros,
            rows,
            begin,
            row_length,
            num_groups,
            num_inputs,
            FORMAT,
            GROUP,
            HAS_ZEROS,
            INPUTS,
            given.dtype.element_ty,
            IS_SCALED,
        )
        inputs = begin + tl.arange(0, INPUTS)
        is_input = inputs < num_inputs
        if HAS_ORDER:
            inputs = tl.load(order + inputs, mask=is_input, other=0)
        numbers = tl.load(
            given + inputs[None, :],
            mask=is_token[:, None] & is_input[None, :],
            other=0.0,
        )
        if GROUP == 0 or IS_SCALED:
            summed = _add_product(numbers, weights, summed, IS_TURNED)
        else:
            part = tl.zeros(sides, tl.float32)
            part = _add_product(numbers, weights, part, IS_TURNED)
            factors = read_factors(scales, rows, begin, num_groups, FORMAT, GROUP)
            summed += part * tl.expand_dims(factors, 1 if IS_TURNED else 0)
    if GROUP == 0:
        factors = read_factors(scales, rows, 0, num_groups, FORMAT, GROUP)
        summed *= tl.expand_dims(factors, 1 if IS_TURNED else 0)
    if IS_TURNED:
        summed = tl.trans(summed)
    is_output = outputs < num_outputs
    if HAS_BIAS:
        biases = tl.load(bias + outputs, mask=is_output, other=0.0)
        summed += biases.to(tl.float32)[None, :]
    lines = split.to(tl.int64) * num_tokens + tokens
    tl.store(
        output + lines[:, None] * num_outputs + outputs[None, :],
        summed.to(output.dtype.element_ty),
        mask=is_token[:, None] & is_output[None, :],
    )


@triton.jit
def _add_product(numbers, weights, summed, IS_TURNED: tl.constexpr):
    """Add a product to `summed`: (outputs, tokens) if IS_TURNED, else (tokens, outputs)."""
    if IS_TURNED:
        summed = multiply_and_add(weights, tl.trans(numbers), summed)
    else:
        summed = multiply_and_add(numbers, tl.trans(weights), summed)
    return summed


@triton.jit(do_not_specialize=["num_tokens"])
def add_splits(
    parts,
    bias,
    output,
    num_tokens,
    num_outputs,
    SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """Add up the splits of a product, in their order; the grid is (tokens, outputs).

    Args:
      parts: (SPLITS, num_tokens, num_outputs) float32
      bias: (num_outputs,), if HAS_BIAS
      output: (num_tokens, num_outputs)
      OUTPUTS: of a program.
    """
    token = tl.program_id(0).to(tl.int64)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = outputs < num_outputs
    summed = tl.zeros((OUTPUTS,), tl.float32)
    for split in tl.static_range(SPLITS):
        line = (split * num_tokens + token) * num_outputs
        summed += tl.load(parts + line + outputs, mask=is_output, other=0.0)
    if HAS_BIAS:
        biases = tl.load(bias + outputs, mask=is_output, other=0.0)
        summed += biases.to(tl.float32)
    tl.store(
        output + token * num_outputs + outputs,
        summed.to(output.dtype.element_ty),
        mask=is_output,
    )


@triton.jit
def restore(
    codes,
    scales,
    zeros,
    order,
    output,
    num_outputs,
    num_inputs,
    row_length,
    num_groups,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    """Dequantise weights, in the order of the inputs; the grid is (outputs, inputs).

    Args:
      output: (num_outputs, num_inputs), in the type that it has
      Others: as in `multiply`.
    """
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    begin = tl.program_id(1) * INPUTS
    weights = read_tile(
        codes,
        scales,
        zeros,
        tl.minimum(outputs, num_outputs - 1),
        begin,
        row_length,
        num_groups,
        num_inputs,
        FORMAT,
        GROUP,
        HAS_ZEROS,
        INPUTS,
        output.dtype.element_ty,
    )
    inputs = begin + tl.arange(0, INPUTS)
    is_input = inputs < num_inputs
    if HAS_ORDER:
        inputs = tl.load(order + inputs, mask=is_input, other=0)
    tl.store(
        output + outputs.to(tl.int64)[:, None] * num_inputs + inputs[None, :],
        weights,
        mask=(outputs < num_outputs)[:, None] & is_input[None, :],
    )
