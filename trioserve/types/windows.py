"""Window blocks: the blocks of layers whose queries see a window of the keys alone.

A sequence gives back the blocks behind the window of its next token. So it holds a bounded
number of them, while it holds blocks of all its tokens for the other layers.
"""

from __future__ import annotations

from dataclasses import dataclass

# The most tokens of a sequence that steps in flight sample and nobody knows yet. Their steps
# may be planned again, so the blocks of the last known token's window stay.
_MAX_PLACEHOLDERS = 4


# Blocks that a sequence keeps behind its window. A later prompt goes on at the end of a block, which
# may be a block before the last token, and needs the window behind that place.
SPARE_BLOCKS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLayers:
    """The layers of a model that have window blocks.

    Args:
      window: the most keys that a query sees.
      kv_bytes_per_token: bytes of keys and values that these layers keep for a token.
    """

    window: int
    kv_bytes_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBlocks:
    """The size of a KV cache.

    Args:
      num_blocks: its blocks.
      num_window_blocks: the window blocks beside them; None if layers with windows have the
        same blocks as all others.
    """

    num_blocks: int
    num_window_blocks: int | None = None


def count_window_blocks(window: int, max_chunk: int, block_size: int) -> int:
    """Return the most window blocks that a sequence holds.

    Args:
      window: the most keys that a query sees.
      max_chunk: tokens of a sequence in one step.
      block_size: tokens in one block.
    """
    num_tokens = window - 1 + max(max_chunk, _MAX_PLACEHOLDERS)
    # The first token may lie anywhere in its block, and one block more stays (SPARE_BLOCKS).
    return -(-num_tokens // block_size) + 1 + SPARE_BLOCKS
