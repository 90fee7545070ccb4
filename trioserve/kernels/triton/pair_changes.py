"""Changes of low rank of experts' weights, for pairs of token and expert.

    outputs = weights[expert] @ inputs + b[expert] @ a[expert] @ inputs

Blocks of pairs with one expert (route.py) may have several adapters: a program takes these one
after the other, with the pairs of the others masked. Tokens with the same adapter lie side by
side, so a block has few of them. The tables are those of low_rank.py, of one module:

    a       (num_experts, num_chunks, RANKS, num_inputs)
    b       (num_experts, num_chunks, num_outputs, RANKS)
"""

from __future__ import annotations

import triton
import triton.language as tl

from .attend import multiply_and_add
from .follow import follow, may_follow
from .low_rank import A_PLACE, B_PLACE, ENDS, RANKS
from .route import read_block

# No adapter has this slot.
NO_SLOT = tl.constexpr(2**31 - 1)


@triton.jit
def find_slot(slots, last):
    """Return the smallest slot behind the last one; NO_SLOT if there is none."""
    return tl.min(tl.where(slots > last, slots, NO_SLOT), 0)


@may_follow
@triton.jit(do_not_specialize=["slot_stride", "num_pairs", "split_steps"])
def shrink_pairs(
    given,
    order,
    blocks,
    table,
    token_slots,
    parts,
    slot_stride,
    num_pairs,
    width,
    split_steps,
    NUM_EXPERTS: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    NUM_SHARING: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    IS_GROUPED: tl.constexpr,
):
    """Multiply the inputs of one block of pairs by a; the grid is (blocks, splits).

    Args:
      given, order, blocks: as in `multiply_pairs`
      table: (num_slots, columns) int64, as in low_rank.py; lines are slot_stride apart
      token_slots: (num_tokens,) int32, the slots of tokens; 0 changes nothing
      parts: (splits, num_pairs, width) float32; only the ranks of each adapter are written
      split_steps: reads of a split.
      NUM_CHOSEN: pairs of a token.
      INPUTS: of a read.
    """
    follow()
    block, split = tl.program_id(0), tl.program_id(1)
    expert, count, pairs = read_block(
        order, blocks, block, NUM_EXPERTS, ROWS, IS_GROUPED
    )
    if count == 0:
        return
    is_row = tl.arange(0, ROWS) < count
    slots = tl.load(token_slots + pairs // NUM_CHOSEN, mask=is_row, other=0)
    given += (pairs // NUM_SHARING * NUM_INPUTS)[:, None]
    parts += ((split * num_pairs + pairs) * width)[:, None]
    ranks = tl.arange(0, RANKS)
    here = split * split_steps * INPUTS
    there = tl.minimum(here + split_steps * INPUTS, NUM_INPUTS)
    slot = find_slot(slots, 0)
    while slot < NO_SLOT:
        line = table + slot.to(tl.int64) * slot_stride
        num_chunks = tl.load(line + ENDS + 1).to(tl.int32)
        a = tl.load(line + A_PLACE).to(tl.pointer_type(given.dtype.element_ty))
        # Of an address alone the compiler knows nothing, and reads number by number.
        a = tl.multiple_of(a, 16) + expert * num_chunks * RANKS * NUM_INPUTS
        is_own = (slots == slot)[:, None]
        for chunk in range(num_chunks):
            chunk_ranks = ranks + chunk * RANKS
            summed = tl.zeros((ROWS, RANKS), tl.float32)
            for start in range(here, there, INPUTS):
                places = start + tl.arange(0, INPUTS)
                is_input = places < there
                numbers = tl.load(
                    given + places[None, :],
                    mask=is_own & is_input[None, :],
                    other=0.0,
                )
                weights = tl.load(
                    a + chunk_ranks[None, :] * NUM_INPUTS + places[:, None],
                    mask=is_input[:, None],
                    other=0.0,
                )  # (INPUTS, RANKS)
                summed = multiply_and_add(numbers, weights, summed)
            tl.store(parts + chunk_ranks[None, :], summed, mask=is_own)
        slot = find_slot(slots, slot)


@triton.jit
def expand_pairs(
    gates,
    summed,
    table,
    slots,
    parts,
    expert,
    own,
    slot_stride,
    num_pairs,
    width,
    num_splits,
    NUM_OUTPUTS: tl.constexpr,
    HAS_GATE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Add the changes of one block of pairs to gates and sums, and return both.

    Args:
      gates, summed: (ROWS, OUTPUTS) float32; gates only with HAS_GATE
      table: as in `shrink_pairs`.
      slots: (ROWS,) int32, of the pairs
      parts: (ROWS, 1) places of the pairs in what `shrink_pairs` has written
      own: (OUTPUTS,), the rows of b, all of them are there
      NUM_OUTPUTS, HAS_GATE: as in `multiply_pairs`.
      DTYPE: of the matrices.
    """
    num_rows: tl.constexpr = 2 * NUM_OUTPUTS if HAS_GATE else NUM_OUTPUTS
    ranks = tl.arange(0, RANKS)
    slot = find_slot(slots, 0)
    while slot < NO_SLOT:
        line = table + slot.to(tl.int64) * slot_stride
        num_chunks = tl.load(line + ENDS + 1).to(tl.int32)
        b = tl.load(line + B_PLACE).to(tl.pointer_type(DTYPE))
        b = tl.multiple_of(b, 16) + expert * num_chunks * num_rows * RANKS
        is_own = (slots == slot)[:, None]
        for chunk in range(num_chunks):
            narrow = tl.zeros((slots.shape[0], RANKS), tl.float32)
            part = parts + (ranks + chunk * RANKS)[None, :]
            for _ in range(num_splits):
                narrow += tl.load(part, mask=is_own, other=0.0)
                part += num_pairs * width
            numbers = narrow.to(DTYPE)
            weights = b + (ranks + chunk * num_rows * RANKS)[:, None]
            if HAS_GATE:
                first = tl.load(weights + own[None, :] * RANKS)  # (RANKS, OUTPUTS)
                changed = multiply_and_add(numbers, first, gates)
                gates = tl.where(is_own, changed, gates)
                weights += NUM_OUTPUTS * RANKS
            second = tl.load(weights + own[None, :] * RANKS)
            changed = multiply_and_add(numbers, second, summed)
            # In float16 an adapter may have infinite numbers, and 0 times these is no number.
            summed = tl.where(is_own, changed, summed)
        slot = find_slot(slots, slot)
    return gates, summed
