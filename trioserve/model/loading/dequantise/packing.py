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
      (rows, columns) uint8, with 32 / bits times as many rows or columns

    Raises:
      ValueError: the words have another type.
    """
    if words.dtype != torch.int32:
        raise ValueError(f"words of {words.dtype}")
    held = words.contiguous().view(torch.uint8).unflatten(1, (-1, WORD_BITS // 8))
    mask = (1 << bits) - 1
    parts = [(held >> shift) & mask for shift in range(0, 8, bits)]
    # (rows, columns, numbers of a word)
    numbers = torch.stack(parts, dim=-1).flatten(2) if bits < 8 else held
    return numbers.flatten(1) if dim else numbers.transpose(1, 2).flatten(0, 1)
