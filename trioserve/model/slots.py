"""What the runner remembers of each slot between steps.

A slot is a row of the tables. Tokens are appended, never copied: what a step costs on
the host does not depend on how long an output already is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..steps import BlockId, SlotStart


class SlotTables:
    """Token ids and KV blocks of the sequences that hold slots.

    Attributes:
      token_ids: (max_num_seqs, max_model_len) int32, prompt then output; 0 where a
        vector stands that has no token
      block_ids: (max_num_seqs, max_blocks) int32, in the order of positions
      num_prompt_tokens: tokens of each slot's prompt.
      num_tokens: tokens of each slot's prompt and output together.

    Both tables are kept on the host: a step's layout is worked out there and goes to
    the device in a few flat tensors.
    """

    def __init__(
        self, *, max_num_seqs: int, max_model_len: int, block_size: int
    ) -> None:
        max_blocks = -(-max_model_len // block_size)
        # Not filled: rows are read below num_tokens and _num_blocks only, and memory
        # that is not touched is not taken.
        self.token_ids = torch.empty((max_num_seqs, max_model_len), dtype=torch.int32)
        self.block_ids = torch.zeros((max_num_seqs, max_blocks), dtype=torch.int32)
        self.num_prompt_tokens = [0] * max_num_seqs
        self.num_tokens = [0] * max_num_seqs
        self._num_blocks = [0] * max_num_seqs

    def start(self, start: SlotStart) -> None:
        """Give the slot to a sequence; nothing of the slot's former one remains."""
        token_ids = start.prompt_token_ids + start.output_token_ids
        # Positions without a token are looked up like all others, and the vector that
        # comes back is then replaced.
        self.token_ids[start.slot, : len(token_ids)] = torch.tensor(
            token_ids, dtype=torch.int32
        ).clamp_(min=0)
        self.num_prompt_tokens[start.slot] = len(start.prompt_token_ids)
        self.num_tokens[start.slot] = len(token_ids)
        self._num_blocks[start.slot] = 0

    def append_blocks(self, slot: int, block_ids: tuple[BlockId, ...]) -> None:
        if block_ids:
            begin = self._num_blocks[slot]
            end = begin + len(block_ids)
            self.block_ids[slot, begin:end] = torch.tensor(block_ids, dtype=torch.int32)
            self._num_blocks[slot] = end

    def append_tokens(self, slots: list[int], token_ids: list[int]) -> None:
        """Append one sampled token to each of the slots."""
        columns = [self.num_tokens[slot] for slot in slots]
        self.token_ids[torch.tensor(slots), torch.tensor(columns)] = torch.tensor(
            token_ids, dtype=torch.int32
        )
        for slot in slots:
            self.num_tokens[slot] += 1

    def num_output_tokens(self, slot: int) -> int:
        return self.num_tokens[slot] - self.num_prompt_tokens[slot]

    def read_tokens(self, slot: int, begin: int, end: int) -> Tensor:
        """Token ids at positions [begin, end)."""
        return self.token_ids[slot, begin:end].to(torch.int64)
