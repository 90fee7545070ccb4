"""The begin of a captured step: its tokens, and the new blocks of its sequences."""

from __future__ import annotations

import triton
import triton.language as tl

from .follow import follow, may_follow


# Nothing is compiled for a batch of one size alone.
@may_follow
@triton.jit(do_not_specialize=["num_rows"])
def take_in(
    tokens,
    slots,
    last_tokens,
    token_ids,
    blocks,
    places,
    new_blocks,
    num_rows,
    BLOCK: tl.constexpr,
    HAS_TOKENS: tl.constexpr,
):
    """Put in sampled tokens, and write new blocks to a table; the grid is (blocks of rows,).

    Args:
      tokens: (num_rows,) int64; below 0 where the last token of the row's slot is meant
      slots: (num_rows,) int64
      last_tokens: (num_slots,) int64
      token_ids: (num_rows,) int64, gets the tokens, if HAS_TOKENS
      blocks: the table, int64
      places: (num_rows,) int64, of new blocks in the table; below 0 where there is none
      new_blocks: (num_rows,) int64
    """
    follow()
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < num_rows
    if HAS_TOKENS:
        given = tl.load(tokens + rows, mask=inside, other=0)
        slot = tl.load(slots + rows, mask=inside, other=0)
        is_last = inside & (given < 0)
        last = tl.load(last_tokens + slot, mask=is_last, other=0)
        tl.store(token_ids + rows, tl.where(is_last, last, given), mask=inside)
    place = tl.load(places + rows, mask=inside, other=-1)
    block = tl.load(new_blocks + rows, mask=inside, other=0)
    tl.store(blocks + place, block, mask=inside & (place >= 0))
