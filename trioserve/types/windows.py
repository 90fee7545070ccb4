"""Window blocks: the blocks of layers whose queries see a window of the keys alone.

A sequence gives back the blocks behind the window of its next token. So it holds a bounded
number of them, while it holds blocks of all its tokens for the other layers.
"""

from __future__ import annotations

# The most tokens of a sequence that steps in flight sample and nobody knows yet. Their steps
# may be planned again, so the blocks of the last known token's window stay.
_MAX_PLACEHOLDERS = 4


def count_window_blocks(window: int, max_chunk: int, block_size: int) -> int:
    """Return the most window blocks that a sequence holds.

    Args:
      window: the most keys that a query sees.
      max_chunk: tokens of a sequence in one step.
      block_size: tokens in one block.
    """
    num_tokens = window - 1 + max(max_chunk, _MAX_PLACEHOLDERS)
    # The first token may lie anywhere in its block.
    return -(-num_tokens // block_size) + 1
