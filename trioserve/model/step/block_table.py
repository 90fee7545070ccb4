"""The lists of blocks of all slots, on the device."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ...types.ids import BlockId
from ..device.tensors import send_ids


class BlockTable:
    """A table of blocks, (max_num_seqs, max_blocks) int64.

    New blocks wait on the host until somebody reads the table, so that a captured step can
    take them along with its other numbers.

    Args:
      num_slots, max_blocks: the shape of the table.
    """

    def __init__(self, num_slots: int, max_blocks: int, device: torch.device) -> None:
        self._table = torch.zeros(
            (num_slots, max_blocks), dtype=torch.int64, device=device
        )
        self._width = max_blocks
        # Entries of each slot.
        self._counts = [0] * num_slots
        # The places of new blocks in the flat table, and the blocks.
        self._places: list[int] = []
        self._new: list[BlockId] = []

    def start(self, slot: int, num_blocks: int = 0) -> None:
        """Let the next block of a slot come behind its first `num_blocks` entries."""
        self._counts[slot] = num_blocks

    def append(self, new: Iterable[tuple[int, tuple[BlockId, ...]]]) -> None:
        """Append blocks to the lists of slots.

        Args:
          new: slot, and its new blocks.
        """
        self._write()
        for slot, ids in new:
            begin = slot * self._width + self._counts[slot]
            self._places += range(begin, begin + len(ids))
            self._new += ids
            self._counts[slot] += len(ids)

    def read(self) -> Tensor:
        """Return the table with all blocks."""
        self._write()
        return self._table

    def take_new(self, most: int) -> tuple[list[int], list[BlockId]]:
        """Take the new blocks, which the caller writes; none if there are more than `most`.

        Returns:
          their places in the flat table, and the blocks
        """
        if len(self._places) > most:
            self._write()
        taken = self._places, self._new
        self._places, self._new = [], []
        return taken

    def _write(self) -> None:
        places, new = self._places, self._new
        if places:
            # One transfer for both.
            both = send_ids([*places, *new], self._table.device).view(2, -1)
            self._table.view(-1).index_copy_(0, both[0], both[1])
            self._places, self._new = [], []
