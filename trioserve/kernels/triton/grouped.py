"""Products of pairs of token and expert, each with the weights of its expert.

    multiply_pairs  (blocks of pairs and of outputs,)  one product, and what is behind it
    sum_pairs       (token, block)                     the outputs of a token's experts

Sums are in float32, and in a fixed order: a token's experts in the order of their choice.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .activate import activate
from .attend import multiply_and_add
from .follow import follow, may_follow
from .pair_changes import expand_pairs
from .read_tile import find_unit, read_tile
from .route import read_block

# Blocks of pairs whose programs run side by side: they read the same weights, if they have the
# same expert. The usual choice, not measured on a GPU yet.
SIDE_BY_SIDE = tl.constexpr(8)


@triton.jit
def weigh_clamped(gates, numbers, slope, limit):
    """Return (numbers + 1) * gates * sigmoid(slope * gates), all of them clamped before.

    Source: GptOssExperts in transformers/models/gpt_oss/modeling_gpt_oss.py.
    """
    gates = tl.minimum(gates, limit)
    numbers = tl.minimum(tl.maximum(numbers, -limit), limit)
    return (numbers + 1) * gates * tl.sigmoid(slope * gates)


@may_follow
@triton.jit(do_not_specialize=["num_blocks", "num_pairs", "num_splits", "slot_stride"])
def multiply_pairs(
    given,
    codes,
    scales,
    zeros,
    biases,
    factors,
    order,
    blocks,
    output,
    table,
    token_slots,
    parts,
    slot_stride,
    num_pairs,
    width,
    num_splits,
    num_blocks,
    slope,
    limit,
    NUM_EXPERTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr,
    ROW_LENGTH: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    NUM_SHARING: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    IS_GROUPED: tl.constexpr,
    HAS_GATE: tl.constexpr,
    HAS_BIASES: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
    HAS_CHANGES: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """Multiply one block of pairs by some rows of the weights of their expert.

    The grid is (num_blocks * blocks of outputs,).

    Args:
      given: (num_pairs // NUM_SHARING, NUM_INPUTS)
      codes: (NUM_EXPERTS, rows, ROW_LENGTH), of NUM_OUTPUTS rows; with HAS_GATE, of the
        gates' rows and then of as many rows that they weigh
      scales, zeros: (NUM_EXPERTS, rows, NUM_GROUPS), of the codes, as `read_tile` reads them
      biases: (NUM_EXPERTS, rows), if HAS_BIASES
      factors: (num_pairs,) float32, of the outputs, if HAS_FACTORS
      order, blocks: as in `read_block`.
      output: (num_pairs, NUM_OUTPUTS)
      table, token_slots, parts: as `shrink_pairs` has read and written them, if HAS_CHANGES
      slope, limit: as in `weigh_clamped`.
      NUM_SHARING: pairs that read the same numbers.
      NUM_CHOSEN: pairs of a token.
      FORMAT, GROUP, HAS_ZEROS: as in `read_tile`.
      ROWS: most pairs of a block.
      OUTPUTS, INPUTS: of a program, and of a read.
      ACTIVATION: as in `activate`, of the gates or of the outputs; "clamped", as in
        `weigh_clamped`; or "none".
    """
    follow()
    num_columns: tl.constexpr = (NUM_OUTPUTS + OUTPUTS - 1) // OUTPUTS
    together = tl.program_id(0) // (SIDE_BY_SIDE * num_columns)
    within = tl.program_id(0) % (SIDE_BY_SIDE * num_columns)
    side = tl.minimum(num_blocks - together * SIDE_BY_SIDE, SIDE_BY_SIDE)
    block = together * SIDE_BY_SIDE + within % side
    column = within // side
    expert, count, pairs = read_block(
        order, blocks, block, NUM_EXPERTS, ROWS, IS_GROUPED
    )
    if count == 0:
        return
    is_row = tl.arange(0, ROWS) < count
    outputs = column * OUTPUTS + tl.arange(0, OUTPUTS)
    # Places behind the last row read that row again: a mask would cost more.
    own = tl.minimum(outputs, NUM_OUTPUTS - 1)
    num_rows: tl.constexpr = 2 * NUM_OUTPUTS if HAS_GATE else NUM_OUTPUTS
    codes += expert * num_rows * ROW_LENGTH
    if FORMAT != "plain":
        scales += expert * num_rows * NUM_GROUPS
    if HAS_ZEROS:
        zeros += expert * num_rows * NUM_GROUPS
    summed = tl.zeros((ROWS, OUTPUTS), tl.float32)
    gates = tl.zeros((ROWS, OUTPUTS), tl.float32)
    given += (pairs // NUM_SHARING * NUM_INPUTS)[:, None]
    for start in range(0, NUM_INPUTS, INPUTS):
        inputs = start + tl.arange(0, INPUTS)
        numbers = tl.load(
            given + inputs[None, :],
            mask=is_row[:, None] & (inputs < NUM_INPUTS)[None, :],
            other=0.0,
        )
        first = read_tile(
            codes,
            scales,
            zeros,
            own,
            start,
            ROW_LENGTH,
            NUM_GROUPS,
            NUM_INPUTS,
            FORMAT,
            GROUP,
            HAS_ZEROS,
            INPUTS,
            given.dtype.element_ty,
        )
        if HAS_GATE:
            gates = multiply_and_add(numbers, tl.trans(first), gates)
            second = read_tile(
                codes,
                scales,
                zeros,
                NUM_OUTPUTS + own,
                start,
                ROW_LENGTH,
                NUM_GROUPS,
                NUM_INPUTS,
                FORMAT,
                GROUP,
                HAS_ZEROS,
                INPUTS,
                given.dtype.element_ty,
            )
            summed = multiply_and_add(numbers, tl.trans(second), summed)
        else:
            summed = multiply_and_add(numbers, tl.trans(first), summed)
    units: tl.constexpr = 1 / find_unit(FORMAT, HAS_ZEROS, given.dtype.element_ty)
    gates, summed = gates * units, summed * units
    if HAS_CHANGES:
        gates, summed = expand_pairs(
            gates,
            summed,
            table,
            tl.load(token_slots + pairs // NUM_CHOSEN, mask=is_row, other=0),
            parts + (pairs * width)[:, None],
            expert,
            own,
            slot_stride,
            num_pairs,
            width,
            num_splits,
            NUM_OUTPUTS,
            HAS_GATE,
            given.dtype.element_ty,
        )
    if HAS_BIASES:
        biases += expert * num_rows
        if HAS_GATE:
            gates += tl.load(biases + own)[None, :].to(tl.float32)
            biases += NUM_OUTPUTS
        summed += tl.load(biases + own)[None, :].to(tl.float32)
    if ACTIVATION == "clamped":
        summed = weigh_clamped(gates, summed, slope, limit)
    elif HAS_GATE:
        summed *= activate(gates, ACTIVATION)
    elif ACTIVATION != "none":
        summed = activate(summed, ACTIVATION)
    if HAS_FACTORS:
        summed *= tl.load(factors + pairs)[:, None]
    tl.store(
        output + (pairs * NUM_OUTPUTS)[:, None] + outputs[None, :],
        summed.to(output.dtype.element_ty),
        mask=is_row[:, None] & (outputs < NUM_OUTPUTS)[None, :],
    )


@may_follow
@triton.jit
def sum_pairs(
    parts,
    shared,
    gates,
    output,
    SIZE: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_SHARED: tl.constexpr,
    HAS_GATES: tl.constexpr,
):
    """Add up the outputs of one token's experts; the grid is (tokens, blocks).

    Args:
      parts: (num_tokens, NUM_CHOSEN, SIZE)
      shared: (num_tokens, SIZE), of the expert of all tokens, if HAS_SHARED
      gates: (num_tokens,), whose sigmoids weigh it, if HAS_GATES
      output: (num_tokens, SIZE)
    """
    follow()
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    parts += token * NUM_CHOSEN * SIZE + columns
    total = tl.zeros((BLOCK,), tl.float32)
    for place in range(NUM_CHOSEN):
        total += tl.load(parts + place * SIZE, mask=inside, other=0.0).to(tl.float32)
    if HAS_SHARED:
        places = shared + token * SIZE + columns
        more = tl.load(places, mask=inside, other=0.0).to(tl.float32)
        if HAS_GATES:
            more *= tl.sigmoid(tl.load(gates + token).to(tl.float32))
        total += more
    tl.store(
        output + token * SIZE + columns,
        total.to(output.dtype.element_ty),
        mask=inside,
    )
