"""Changes of low rank behind a product, one for each tile of tokens.

    outputs = output_scale * (weight @ inputs + b @ a @ inputs) + bias

A product joins the outputs of some modules, and an adapter has matrices for each of them. The
ranks of all its modules follow each other, in chunks of RANKS; a module without a change has
no chunk. The table has a line of numbers for each slot and product:

    A_PLACE, B_PLACE, SCALE_PLACE    addresses, multiples of 16
        a       (num_chunks, RANKS, num_inputs), of the chunks of all modules
        b       (num_chunks of the largest module, num_outputs, RANKS)
        scale   (num_outputs,) float32; the address is 0 without it
    ENDS, and the places behind it   0, and the ends of the chunks of each module

Slot 0 has zeros: nothing is changed. So graphs do not depend on which adapters run.

Source: Chen et al. 2023 (Punica), for the two steps and their segments.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .attend import multiply_and_add
from .follow import follow, may_follow

# Columns of the tensor of tiles.
TILE_BEGIN = tl.constexpr(0)
TILE_COUNT = tl.constexpr(1)
TILE_SLOT = tl.constexpr(2)
TILE_COLUMNS = tl.constexpr(3)

# Columns of the tensor of blocks.
BLOCK_BEGIN = tl.constexpr(0)
BLOCK_COUNT = tl.constexpr(1)
BLOCK_MODULE = tl.constexpr(2)
BLOCK_COLUMNS = tl.constexpr(3)

# Places in a line of the table.
A_PLACE = tl.constexpr(0)
B_PLACE = tl.constexpr(1)
SCALE_PLACE = tl.constexpr(2)
ENDS = tl.constexpr(3)

# The smallest side of a product on tensor cores.
RANKS = tl.constexpr(16)


# The adapters that are tried first have a table of their own, with another stride.
@may_follow
@triton.jit(do_not_specialize=["slot_stride", "num_tokens", "split_steps"])
def shrink(
    given,
    parts,
    table,
    tiles,
    given_stride,
    slot_stride,
    num_inputs,
    num_tokens,
    width,
    split_steps,
    TOKENS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    """Multiply the inputs of one tile by a of one module; the grid is (tiles, modules, splits).

    Args:
      given: (num_tokens, num_inputs), whose tokens are a stride apart
      parts: (splits, num_tokens, width) float32; only the ranks of each adapter are written
      table: of the product, lines are slot_stride apart
      tiles: (num_tiles, TILE_COLUMNS) int32: first token, number of tokens, slot
      split_steps: reads of a split.
      TOKENS: most tokens of a tile.
      INPUTS: of a read.
    """
    follow()
    tile, module, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(tiles + tile * TILE_COLUMNS + TILE_BEGIN).to(tl.int64)
    count = tl.load(tiles + tile * TILE_COLUMNS + TILE_COUNT)
    slot = tl.load(tiles + tile * TILE_COLUMNS + TILE_SLOT).to(tl.int64)
    line = table + slot * slot_stride
    first_chunk = tl.load(line + ENDS + module).to(tl.int32)
    last_chunk = tl.load(line + ENDS + 1 + module).to(tl.int32)
    a = tl.load(line + A_PLACE).to(tl.pointer_type(given.dtype.element_ty))
    # Of an address alone the compiler knows nothing, and reads number by number.
    a = tl.multiple_of(a, 16)
    given += begin * given_stride
    parts += (split * num_tokens + begin) * width
    # Places in a tile have 32 bits: wider ones take too many registers.
    rows, ranks = tl.arange(0, TOKENS), tl.arange(0, RANKS)
    is_row = rows < count
    # Multiples of a constant, so that the compiler reads many numbers at once.
    here = split * split_steps * INPUTS
    there = tl.minimum(here + split_steps * INPUTS, num_inputs)
    for chunk in range(first_chunk, last_chunk):
        chunk_ranks = chunk * RANKS + ranks
        summed = tl.zeros((TOKENS, RANKS), tl.float32)
        for start in range(here, there, INPUTS):
            places = start + tl.arange(0, INPUTS)
            is_input = places < there
            numbers = tl.load(
                given + rows[:, None] * given_stride + places[None, :],
                mask=is_row[:, None] & is_input[None, :],
                other=0.0,
            )
            weights = tl.load(
                a + chunk_ranks[None, :] * num_inputs + places[:, None],
                mask=is_input[:, None],
                other=0.0,
            )  # (INPUTS, RANKS)
            summed = multiply_and_add(numbers, weights, summed)
        target = parts + rows[:, None] * width + chunk_ranks[None, :]
        tl.store(target, summed, mask=is_row[:, None])


@may_follow
@triton.jit(do_not_specialize=["slot_stride", "num_tokens", "num_splits"])
def expand(
    output,
    parts,
    table,
    tiles,
    blocks,
    bias,
    slot_stride,
    num_outputs,
    num_tokens,
    width,
    num_splits,
    TOKENS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Change some outputs of one tile, in place; the grid is (tiles, blocks).

    Args:
      output: (num_tokens, num_outputs), of the product alone
      parts: as `shrink` has written them, of num_splits.
      table, tiles: as in `shrink`.
      blocks: (num_blocks, BLOCK_COLUMNS) int32: the first output, the number of outputs, and
        the module that has all of them
      bias: (num_outputs,), which the outputs contain, if HAS_BIAS
      OUTPUTS: most outputs of a block.
      IS_ALIGNED: all blocks begin and end at multiples of 16.
    """
    follow()
    tile, block = tl.program_id(0), tl.program_id(1)
    begin = tl.load(tiles + tile * TILE_COLUMNS + TILE_BEGIN).to(tl.int64)
    count = tl.load(tiles + tile * TILE_COLUMNS + TILE_COUNT)
    slot = tl.load(tiles + tile * TILE_COLUMNS + TILE_SLOT).to(tl.int64)
    first_output = tl.load(blocks + block * BLOCK_COLUMNS + BLOCK_BEGIN)
    num_block_outputs = tl.load(blocks + block * BLOCK_COLUMNS + BLOCK_COUNT)
    if IS_ALIGNED:
        first_output = tl.multiple_of(first_output, 16)
        num_block_outputs = tl.multiple_of(num_block_outputs, 16)
    module = tl.load(blocks + block * BLOCK_COLUMNS + BLOCK_MODULE)
    line = table + slot * slot_stride
    first_chunk = tl.load(line + ENDS + module).to(tl.int32)
    last_chunk = tl.load(line + ENDS + 1 + module).to(tl.int32)
    if first_chunk == last_chunk:
        return
    element: tl.constexpr = output.dtype.element_ty
    b = tl.load(line + B_PLACE).to(tl.pointer_type(element))
    b = tl.multiple_of(b, 16)
    parts += begin * width
    output += begin * num_outputs
    rows, ranks = tl.arange(0, TOKENS), tl.arange(0, RANKS)
    is_row = rows < count
    columns = tl.arange(0, OUTPUTS)
    is_output = columns < num_block_outputs
    outputs = first_output + columns
    summed = tl.zeros((TOKENS, OUTPUTS), tl.float32)
    for chunk in range(first_chunk, last_chunk):
        narrow = tl.zeros((TOKENS, RANKS), tl.float32)
        chunk_ranks = chunk * RANKS + ranks
        part = parts + rows[:, None] * width + chunk_ranks[None, :]
        for _ in range(num_splits):
            narrow += tl.load(part, mask=is_row[:, None], other=0.0)
            part += num_tokens * width
        own = (chunk - first_chunk) * num_outputs + outputs
        weights = tl.load(
            b + own[None, :] * RANKS + ranks[:, None],
            mask=is_output[None, :],
            other=0.0,
        )  # (RANKS, OUTPUTS)
        summed = multiply_and_add(narrow.to(element), weights, summed)
    targets = output + rows[:, None] * num_outputs + outputs[None, :]
    inside = is_row[:, None] & is_output[None, :]
    numbers = tl.load(targets, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(line + SCALE_PLACE)
    if scale != 0:
        factors = tl.load(
            scale.to(tl.pointer_type(tl.float32)) + outputs,
            mask=is_output,
            other=0.0,
        )[None, :]
        if HAS_BIAS:
            biases = tl.load(bias + outputs, mask=is_output, other=0.0)
            biases = biases.to(tl.float32)[None, :]
            numbers = factors * (numbers - biases + summed) + biases
        else:
            numbers = factors * (numbers + summed)
    else:
        numbers += summed
    tl.store(targets, numbers.to(element), mask=inside)
