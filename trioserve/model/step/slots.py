"""The state of each slot between steps.

A slot is a row of the tables. The tokens that a sequence started with are on the host.
Later tokens are not: the next step needs only the last token of a sequence, which is on
the device, perhaps before the host has read it. The list of a sequence's blocks is on the
device too (block_table.py), and a step sends only its new blocks. So a step costs the host the same,
however long an output is.

Layers with windows may have blocks and tables of their own. The scheduler takes back the
blocks behind all windows, and tells nobody: their entries stay in the table, stale, and
attention begins to read at the first key that a query sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from ...types.adapter import NO_ADAPTER
from ...types.plan import SlotStart, StepRow
from .block_table import BlockTable


class SlotTables:
    """Token ids and KV blocks of the sequences that hold slots.

    Attributes:
      block_size: tokens in one block.
      num_checkpoints: copies of states.
      token_ids: (max_num_seqs, max_model_len) int32, on the host, the tokens that each slot
        started with; 0 at places of vectors that have no token
      blocks: the blocks of each slot, in the order of positions.
      window_blocks: the same of layers with windows; None if these have the same blocks as all
        others.
      last_token_ids: (max_num_seqs,) int64, on the device, the last token that each
        slot sampled
      num_prompt_tokens: (max_num_seqs,) int64, on the host, tokens of each slot's prompt
      num_tokens: (max_num_seqs,) int64, on the host, the tokens that each slot started with:
        of its prompt, and those that it had written before
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
        num_checkpoints: int = 0,
        has_windows: bool = False,
    ) -> None:
        max_blocks = -(-max_model_len // block_size)
        self.block_size = block_size
        self.num_checkpoints = num_checkpoints
        # Not filled with zeros, because untouched memory costs nothing. Values beyond
        # num_tokens may be read, but are replaced.
        self.token_ids = np.empty((max_num_seqs, max_model_len), dtype=np.int32)
        shape = max_num_seqs, max_blocks
        self.blocks = BlockTable(*shape, device)
        self.window_blocks = BlockTable(*shape, device) if has_windows else None
        self.last_token_ids = torch.zeros(
            max_num_seqs, dtype=torch.int64, device=device
        )
        self.num_prompt_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self._adapters = [NO_ADAPTER] * max_num_seqs

    @property
    def block_ids(self) -> Tensor:
        """(max_num_seqs, max_blocks) int64, on the device."""
        return self.blocks.read()

    @property
    def window_ids(self) -> Tensor | None:
        """The same for the blocks of layers with windows."""
        return None if self.window_blocks is None else self.window_blocks.read()

    def start(self, start: SlotStart) -> None:
        """Give a slot to a sequence, in place of its former one."""
        token_ids = start.prompt_token_ids + start.output_token_ids
        # The embedding of a position without a token is looked up like all others, and
        # then replaced by its vector.
        self.token_ids[start.slot, : len(token_ids)] = np.maximum(token_ids, 0)
        self.num_prompt_tokens[start.slot] = len(start.prompt_token_ids)
        self.num_tokens[start.slot] = len(token_ids)
        self._adapters[start.slot] = start.adapter
        self.blocks.start(start.slot)
        if self.window_blocks is not None:
            self.window_blocks.start(start.slot, start.first_window_block)

    def append_blocks(self, rows: Sequence[StepRow]) -> None:
        """Append the new blocks of rows to the lists of their slots."""
        self.blocks.append(
            [(row.slot, row.new_block_ids) for row in rows if row.new_block_ids]
        )
        if self.window_blocks is not None:
            self.window_blocks.append(
                [(row.slot, row.new_window_ids) for row in rows if row.new_window_ids]
            )

    def get_table(self, is_windowed: bool) -> Tensor:
        """Return the table of the blocks that a layer has, (max_num_seqs, max_blocks)."""
        blocks = self.window_blocks if is_windowed else self.blocks
        assert blocks is not None, "layers with windows have their own blocks"
        return blocks.read()

    def find_cache_slots(
        self, slots: Tensor, positions: Tensor, is_windowed: bool = False
    ) -> Tensor:
        """Return the places of tokens in the KV cache.

        Args:
          slots, positions: (num_tokens,) int64, on the device

        Returns:
          (num_tokens,) int64, block * block_size + offset
        """
        size, table = self.block_size, self.get_table(is_windowed)
        return table[slots, positions // size] * size + positions % size

    def keep_sampled(self, slots: Tensor, token_ids: Tensor) -> None:
        """Store the last tokens of slots, (num_slots,) int64 both, on the device."""
        self.last_token_ids.index_copy_(0, slots, token_ids)

    def count_outputs(self, rows: Iterable[StepRow]) -> list[int]:
        """Return the number of output tokens of each sequence up to the end of its row."""
        prompts: list[int] = self.num_prompt_tokens.tolist()
        return [row.start + row.num_tokens - prompts[row.slot] for row in rows]

    def find_adapters(self, rows: Sequence[StepRow]) -> tuple[int, ...]:
        """Return the numbers of the adapters of rows; empty if no row has one."""
        if not any(self._adapters):
            return ()
        numbers = tuple(self._adapters[row.slot] for row in rows)
        return numbers if any(numbers) else ()

    def read_tokens(self, slot: int, begin: int, end: int) -> Tensor:
        """Return the token ids at positions [begin, end) of the prompt, int64."""
        return torch.from_numpy(self.token_ids[slot, begin:end].astype(np.int64))
