"""The state of each slot between steps.

A slot is a row of the tables. The tokens that a sequence started with are on the host.
Later tokens are not: the next step needs only the last token of a sequence, which is on
the device, perhaps before the host has read it. The list of a sequence's blocks is on the
device too, and a step sends only its new blocks. So a step costs the host the same,
however long an output is.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ...types.ids import BlockId
from ...types.plan import SlotStart, StepRow
from ..device.tensors import send_ids


class SlotTables:
    """Token ids and KV blocks of the sequences that hold slots.

    Attributes:
      block_size: tokens in one block.
      num_checkpoints: copies of states.
      token_ids: (max_num_seqs, max_model_len) int32, the tokens that each slot started
        with; 0 at places of vectors that have no token
      block_ids: (max_num_seqs, max_blocks) int64, on the device, in the order of positions
      last_token_ids: (max_num_seqs,) int64, on the device, the last token that each
        slot sampled
      num_prompt_tokens: tokens of each slot's prompt.
      num_tokens: tokens that each slot started with: tokens of its prompt, and tokens that
        it had written before.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
        num_checkpoints: int = 0,
    ) -> None:
        max_blocks = -(-max_model_len // block_size)
        self.block_size = block_size
        self.num_checkpoints = num_checkpoints
        # Not filled with zeros, because untouched memory costs nothing. Values beyond
        # num_tokens may be read, but are replaced.
        self.token_ids = torch.empty((max_num_seqs, max_model_len), dtype=torch.int32)
        self.block_ids = torch.zeros(
            (max_num_seqs, max_blocks), dtype=torch.int64, device=device
        )
        self.last_token_ids = torch.zeros(
            max_num_seqs, dtype=torch.int64, device=device
        )
        self.num_prompt_tokens = [0] * max_num_seqs
        self.num_tokens = [0] * max_num_seqs
        self._num_blocks = [0] * max_num_seqs

    def start(self, start: SlotStart) -> None:
        """Give a slot to a sequence, in place of its former one."""
        token_ids = start.prompt_token_ids + start.output_token_ids
        # The embedding of a position without a token is looked up like all others, and
        # then replaced by its vector.
        self.token_ids[start.slot, : len(token_ids)] = torch.tensor(
            token_ids, dtype=torch.int32
        ).clamp_(min=0)
        self.num_prompt_tokens[start.slot] = len(start.prompt_token_ids)
        self.num_tokens[start.slot] = len(token_ids)
        self._num_blocks[start.slot] = 0

    def append_blocks(self, rows: Iterable[StepRow]) -> None:
        """Append the new blocks of rows to the lists of their slots."""
        places: list[int] = []
        block_ids: list[BlockId] = []
        for row in rows:
            if row.new_block_ids:
                begin = row.slot * self.block_ids.shape[1] + self._num_blocks[row.slot]
                places += range(begin, begin + len(row.new_block_ids))
                block_ids += row.new_block_ids
                self._num_blocks[row.slot] += len(row.new_block_ids)
        if places:
            device = self.block_ids.device
            self.block_ids.view(-1).index_copy_(
                0, send_ids(places, device), send_ids(block_ids, device)
            )

    def find_cache_slots(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Return the places of tokens in the KV cache.

        Args:
          slots, positions: (num_tokens,) int64, on the device

        Returns:
          (num_tokens,) int64, block * block_size + offset
        """
        size = self.block_size
        return self.block_ids[slots, positions // size] * size + positions % size

    def keep_sampled(self, slots: Tensor, token_ids: Tensor) -> None:
        """Store the last tokens of slots, (num_slots,) int64 both, on the device."""
        self.last_token_ids.index_copy_(0, slots, token_ids)

    def has_sampled(self, row: StepRow) -> bool:
        """Return whether the last token of a row was sampled after its slot started."""
        return row.end > self.num_tokens[row.slot]

    def count_outputs(self, row: StepRow) -> int:
        """Return the number of output tokens of a sequence up to the end of a row."""
        return row.end - self.num_prompt_tokens[row.slot]

    def read_tokens(self, slot: int, begin: int, end: int) -> Tensor:
        """Return the token ids at positions [begin, end) of the prompt, int64."""
        return self.token_ids[slot, begin:end].to(torch.int64)
