"""The kernel at the begin of captured decodes, called with tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .take_in import take_in

# Rows of one program, a usual choice.
_BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBlocks:
    """The new blocks of a step's rows.

    Attributes:
      table: (max_num_seqs, max_blocks) int64
      places: (num_rows,) int64, in the flat table; below 0 where there is none
      block_ids: (num_rows,) int64
    """

    table: Tensor
    places: Tensor
    block_ids: Tensor


def take_tokens(
    tokens: Tensor, slots: Tensor, last_tokens: Tensor, blocks: Sequence[NewBlocks]
) -> Tensor:
    """Write new blocks to their tables, and return the tokens of rows.

    Args:
      tokens: (num_rows,) int64; below 0 where the last token of the row's slot is meant
      slots: (num_rows,) int64; of rows below 0, a slot
      last_tokens: (num_slots,) int64

    Returns:
      (num_rows,) int64
    """
    num_rows = len(tokens)
    token_ids = tokens.new_empty(num_rows)
    for index, each in enumerate(blocks):
        take_in[-(-num_rows // _BLOCK),](
            *(tokens, slots, last_tokens, token_ids),
            *(each.table, each.places, each.block_ids, num_rows),
            BLOCK=_BLOCK,
            HAS_TOKENS=index == 0,
        )
    return token_ids
