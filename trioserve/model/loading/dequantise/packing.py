"""Whole numbers of a few bits, many in one of 32."""

from __future__ import annotations

import torch
from torch import Tensor

WORD_BITS = 32
# The numbers of bits that divide a word, so that no number lies in two of them.
WHOLE_BITS = (2, 4, 8)


def unpack(words: Tensor, bits: int, dim: int) -> Tensor:
    """Return the numbers of packed words, the lowest bits of a word first.

    Args:
      words: (rows, columns) int32
      bits: of each number, one of WHOLE_BITS.
      dim: 0 if a word has numbers of one column, 1 if of one row.

    Returns:
      (rows, columns) int32 from 0 to 2 ** bits - 1, with 32 / bits times as many rows or
      columns
    """
    shifts = torch.arange(0, WORD_BITS, bits, dtype=torch.int32, device=words.device)
    shape = [1, 1, 1]
    shape[dim + 1] = len(shifts)
    # A shift to the right copies the sign, which the mask removes.
    numbers = (words.unsqueeze(dim + 1) >> shifts.view(shape)) & ((1 << bits) - 1)
    return numbers.flatten(dim, dim + 1)
