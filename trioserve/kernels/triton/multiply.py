"""Products of few tokens, with weights in 16 or fewer bits, and the way back to whole numbers."""

from __future__ import annotations

import triton
import triton.language as tl

from .activate import activate
from .attend import multiply_and_add
from .follow import IS_INTERPRETED, let_next_begin, may_follow, wait
from .read_tile import (
    dequantise,
    find_unit,
    make_factors,
    read_plain,
    read_scales,
    read_tile,
)

# Up to so many tokens, a product waits for its parts: that takes fewer instructions than products
# that are under way while the next weights are dequantised, but more registers.
_APART = tl.constexpr(16)


@may_follow
@triton.jit(do_not_specialize=["num_tokens"])
def multiply(
    given,
    codes,
    scales,
    zeros,
    order,
    bias,
    parts,
    tickets,
    output,
    num_tokens,
    num_outputs,
    num_inputs,
    given_stride,
    row_length,
    num_groups,
    split_inputs,
    gate_scale,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SPLITS: tl.constexpr,
    TOKENS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    IS_TURNED: tl.constexpr,
    LINES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """Multiply some tokens by some outputs' weights; the grid is (outputs, tokens, splits).

    The program of a block that ends last adds up the block's splits, in their order.

    Args:
      given: (num_tokens, num_inputs), whose tokens are a stride apart
      codes, scales, zeros, row_length, num_groups: of the weights, as in `read_tile`
      order: (num_inputs,) int32, the place of each input of the weights in `given`, if
        HAS_ORDER
      bias: (num_outputs,), if HAS_BIAS
      parts: (splits, num_tokens, num_outputs) float32, if HAS_SPLITS
      tickets: (blocks of tokens and outputs,) int32, zeros before and after, if HAS_SPLITS
      output: (num_tokens, num_outputs), in the type that it has; half as many with gates
      split_inputs: of a split, a multiple of INPUTS; each split has some.
      gate_scale: factor of gates before their activation.
      TOKENS, OUTPUTS: of a program.
      INPUTS: of a read.
      IS_TURNED: the weights are the first matrix of the product, so they go from registers to
        tensor cores, and each warp dequantises rows of its own.
      LINES: of 128 bytes of each row, which are fetched while kernels before this one end.
      IS_WHOLE: num_inputs is a multiple of INPUTS.
      ACTIVATION: as in `activate`: the first half of the outputs are gates of the second; None
        if none are.
    """
    let_next_begin()
    block, tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tokens = tile * TOKENS + tl.arange(0, TOKENS)
    is_token = tokens < num_tokens
    outputs = block * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = outputs
    if ACTIVATION is not None:
        # Each gate beside its number.
        rows = outputs // 2 + outputs % 2 * (num_outputs // 2)
    # Beyond the last row, it is read again.
    rows = tl.minimum(rows, num_outputs - 1)
    # Few rows that are not there take time to read again, and masks of many rows take longer.
    IS_MASKED: tl.constexpr = TOKENS < 64
    own = tokens if IS_MASKED else tl.minimum(tokens, num_tokens - 1)
    # Tokens may be many and their inputs wide.
    given += own.to(tl.int64)[:, None] * given_stride
    here = split * split_inputs
    there = tl.minimum(here + split_inputs, num_inputs)
    if LINES:
        fetch(codes, rows, here, there, row_length, FORMAT, LINES)
    wait()
    # Codes are exact in products of 16 bits, so scales of rows and of wide groups wait for sums.
    # With many tokens, scales of the same type take no time where zeros are taken away.
    IS_SCALED: tl.constexpr = (
        False
        if GROUP == 0
        else GROUP < INPUTS
        or (TOKENS > 32 and scales.dtype.element_ty == given.dtype.element_ty)
    )
    sides: tl.constexpr = (OUTPUTS, TOKENS) if IS_TURNED else (TOKENS, OUTPUTS)
    summed = tl.zeros(sides, tl.float32)
    # Scales are too small for copies to shared memory, so they are read in advance. One group of
    # weights that are scaled at once is not: all weights would go through shared memory then.
    IS_EARLY: tl.constexpr = GROUP != 0 and (not IS_SCALED or GROUP < INPUTS)
    # So a loop that does not run needs no sums, and the compiler lets products run side by side.
    tl.assume(here < there)
    if FORMAT != "plain":
        ahead = read_scales(scales, rows, here, num_groups, GROUP, INPUTS)
    for begin in range(here, there, INPUTS):
        if FORMAT == "plain":
            weights = read_plain(codes, rows, begin, row_length, num_inputs, INPUTS)
        else:
            held = ahead
            if IS_EARLY:
                after = tl.where(begin + INPUTS < there, begin + INPUTS, begin)
                ahead = read_scales(scales, rows, after, num_groups, GROUP, INPUTS)
            elif GROUP != 0:
                held = read_scales(scales, rows, begin, num_groups, GROUP, INPUTS)
            weights = dequantise(
                *(codes, held, zeros, rows, begin, row_length, num_groups),
                *(FORMAT, GROUP, HAS_ZEROS, INPUTS, given.dtype.element_ty, IS_SCALED),
            )
        inputs = begin + tl.arange(0, INPUTS)
        is_input = inputs < num_inputs
        if HAS_ORDER:
            inputs = tl.load(order + inputs, mask=is_input, other=0)
        if IS_WHOLE and not IS_MASKED:
            numbers = tl.load(given + inputs[None, :])
        else:
            mask = is_token[:, None] if IS_MASKED else True
            if not IS_WHOLE:
                mask &= is_input[None, :]
            numbers = tl.load(given + inputs[None, :], mask=mask, other=0.0)
        is_whole_sum: tl.constexpr = GROUP == 0 or IS_SCALED
        if is_whole_sum and (TOKENS > _APART or FORMAT == "plain"):
            summed = _add_product(numbers, weights, summed, IS_TURNED)
        else:
            part = tl.zeros(sides, tl.float32)
            part = _add_product(numbers, weights, part, IS_TURNED)
            if is_whole_sum:
                # Added by itself, it would be the start of the product.
                factors = tl.full(sides, 1.0, tl.float32)
            else:
                factors = _make_factors(held, FORMAT, IS_TURNED)
                factors = tl.broadcast_to(factors, sides)
            summed = tl.fma(part, factors, summed)
    if GROUP == 0 and FORMAT != "plain":
        summed *= _make_factors(ahead, FORMAT, IS_TURNED)
    summed *= 1 / find_unit(FORMAT, HAS_ZEROS, given.dtype.element_ty)
    if IS_TURNED:
        summed = tl.trans(summed)
    is_output = outputs < num_outputs
    is_sum = is_token[:, None] & is_output[None, :]
    places = tokens.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    if HAS_SPLITS:
        size = num_tokens.to(tl.int64) * num_outputs
        tl.store(parts + split * size + places, summed, mask=is_sum)
        # All threads have stored before one of them says so.
        tl.debug_barrier()
        ticket = tickets + tile * tl.num_programs(0) + block
        if tl.atomic_add(ticket, 1, sem="acq_rel") < tl.num_programs(2) - 1:
            return
        tl.store(ticket, 0)
        summed = tl.zeros((TOKENS, OUTPUTS), tl.float32)
        for each in range(tl.num_programs(2)):
            # Behind the first cache, which knows nothing of other multiprocessors.
            place = parts + each * size + places
            summed += tl.load(place, mask=is_sum, other=0.0, cache_modifier=".cg")
    if HAS_BIAS:
        biases = tl.load(bias + rows, mask=is_output, other=0.0)
        summed += biases.to(tl.float32)[None, :]
    if ACTIVATION is not None:
        pairs = tl.reshape(summed, (TOKENS, OUTPUTS // 2, 2))
        gates, summed = tl.split(pairs)
        summed *= activate(gate_scale * gates, ACTIVATION)
        num_outputs //= 2
        outputs = block * (OUTPUTS // 2) + tl.arange(0, OUTPUTS // 2)
        is_sum = is_token[:, None] & (outputs < num_outputs)[None, :]
        places = tokens.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    tl.store(output + places, summed.to(output.dtype.element_ty), mask=is_sum)


@triton.jit
def fetch(
    codes,
    rows,
    here,
    there,
    row_length,
    FORMAT: tl.constexpr,
    LINES: tl.constexpr,
):
    """Fetch the begin of some rows' inputs [here, there) to the second cache.

    Args:
      codes, rows, row_length, FORMAT: as in `read_tile`.
    """
    if not IS_INTERPRETED:
        bits: tl.constexpr = codes.dtype.element_ty.primitive_bitwidth
        is_short: tl.constexpr = FORMAT == "int4" or FORMAT == "mxfp4"
        inputs: tl.constexpr = 1 if FORMAT == "plain" else 8 if is_short else 4
        places = here // inputs + tl.arange(0, LINES) * (1024 // bits)
        places = tl.minimum(places, (there - 1) // inputs)
        lines = codes + rows[:, None] * row_length + places[None, :]
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; // $0",
            "=r,l",
            [lines.to(tl.int64)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def _make_factors(scales, FORMAT: tl.constexpr, IS_TURNED: tl.constexpr):
    """Return the scales of one group as factors of sums: (outputs, 1), or (1, outputs)."""
    factors = make_factors(scales, FORMAT)
    return factors if IS_TURNED else tl.trans(factors)


@triton.jit
def _add_product(numbers, weights, summed, IS_TURNED: tl.constexpr):
    """Add a product to `summed`: (outputs, tokens) if IS_TURNED, else (tokens, outputs)."""
    if IS_TURNED:
        summed = multiply_and_add(weights, tl.trans(numbers), summed)
    else:
        summed = multiply_and_add(numbers, tl.trans(weights), summed)
    return summed


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
    units: tl.constexpr = 1 / find_unit(FORMAT, HAS_ZEROS, output.dtype.element_ty)
    # The interpreter does not compute with bfloat16.
    if units != 1:
        weights *= units
    inputs = begin + tl.arange(0, INPUTS)
    is_input = inputs < num_inputs
    if HAS_ORDER:
        inputs = tl.load(order + inputs, mask=is_input, other=0)
    tl.store(
        output + outputs.to(tl.int64)[:, None] * num_inputs + inputs[None, :],
        weights,
        mask=(outputs < num_outputs)[:, None] & is_input[None, :],
    )
