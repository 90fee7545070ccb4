"""The division of the KV cache's memory between blocks and window blocks.

Sequences of a typical length fill both at the same time. If the cache would be too small for a
length that somebody asks for, it gets more blocks, and fewer window blocks: at least as many as
one sequence needs.
"""

from __future__ import annotations

import sys

from ...types.windows import (
    SPARE_BLOCKS,
    CacheBlocks,
    WindowLayers,
    count_window_blocks,
)

# A guess at the length of a chat. Longer sequences run out of blocks before window blocks.
_TYPICAL_TOKENS = 2048


class CacheDivision:
    """Divides memory between two kinds of blocks, if layers have windows.

    Args:
      kv_bytes_per_token: keys and values of all layers.
      block_size: tokens in one block.
      windows: the layers with windows; None without any.
      max_chunk: tokens of a sequence in one step.
      max_model_len: tokens of the longest sequence.

    Attributes:
      longest: blocks of the longest sequence.
    """

    def __init__(
        self,
        kv_bytes_per_token: int,
        block_size: int,
        *,
        windows: WindowLayers | None,
        max_chunk: int,
        max_model_len: int,
    ) -> None:
        self.longest = -(-max_model_len // block_size)
        self._block_size = block_size
        self._windows = windows
        self._block_bytes = kv_bytes_per_token * block_size
        self._window_bytes = self._most_held = 0
        if windows is None or windows.window >= max_model_len:
            # No block would be given back.
            self._windows = None
            return
        self._window_bytes = windows.kv_bytes_per_token * block_size
        self._block_bytes -= self._window_bytes
        self._most_held = count_window_blocks(windows.window, max_chunk, block_size)
        num_typical = max(_TYPICAL_TOKENS, 4 * windows.window)
        self._typical = min(self.longest, -(-num_typical // block_size))
        # While a sequence decodes; one block stays free for it to grow into.
        self._held = min(
            self._typical, -(-windows.window // block_size) + 2 + SPARE_BLOCKS
        )
        self._chunk = -(-max_chunk // block_size)

    def count_bytes(self, num_blocks: int) -> int:
        """Return the bytes of a sequence that has so many blocks, and is alone."""
        num_window = min(num_blocks, self._most_held)
        return num_blocks * self._block_bytes + num_window * self._window_bytes

    def count_longest(self, memory_bytes: int) -> int:
        """Return the most blocks of a sequence that is alone in some memory."""
        both = self._block_bytes + self._window_bytes
        num_blocks = memory_bytes // both
        if self._windows is None or num_blocks < self._most_held:
            return num_blocks
        if not self._block_bytes:
            return sys.maxsize
        rest = memory_bytes - self._most_held * self._window_bytes
        return rest // self._block_bytes

    def divide(
        self, memory_bytes: int, enough: int, wanted: int | None = None
    ) -> CacheBlocks:
        """Divide memory.

        Args:
          enough: the most blocks that sequences can hold at once.
          wanted: tokens of a sequence that must fit, if it can.
        """
        num_blocks = min(enough, self.count_longest(memory_bytes))
        if self._windows is None:
            return CacheBlocks(num_blocks=num_blocks)
        typical_bytes = (
            self._typical * self._block_bytes + self._held * self._window_bytes
        )
        if self._block_bytes:
            # Beside the chunk of a prompt.
            shared_bytes = max(0, memory_bytes - self._chunk * self._window_bytes)
            even = shared_bytes * self._typical // typical_bytes
            undivided = memory_bytes // (self._block_bytes + self._window_bytes)
            least = -(-(wanted or 0) // self._block_size)
            num_blocks = min(num_blocks, max(even, undivided, least))
        rest = memory_bytes - num_blocks * self._block_bytes
        return CacheBlocks(
            num_blocks=num_blocks,
            # Invariant: one sequence of num_blocks blocks can run alone.
            num_window_blocks=min(num_blocks, rest // self._window_bytes),
        )
