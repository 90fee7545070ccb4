"""Count tokens on the device, for the penalties of tokens that came before."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...types.plan import SlotStart
from ...types.prompt import NO_TOKEN
from ..device.tensors import send_floats, send_ids
from .choice import has_penalties
from .operators import RepeatedTokens
from .rows import SlotRows, grow


class PenaltyCounts:
    """The tokens of each slot: which have come, and how often in the output.

    Rows are given only to slots whose sequence has penalties:

      counts  (num_rows, vocab_size) int32   output tokens
      seen    (num_rows, vocab_size) bool    prompt and output tokens
      numbers (3, num_rows) float32          for repetition, frequency and presence
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._rows = SlotRows(device)
        empty = 0, vocab_size
        self._counts = torch.empty(empty, dtype=torch.int32, device=device)
        self._seen = torch.empty(empty, dtype=torch.bool, device=device)
        self._numbers = torch.empty((3, 0), device=device)

    def start(self, start: SlotStart) -> None:
        """Count the tokens of a sequence, in place of its slot's former one."""
        self._rows.release(start.slot)
        if not has_penalties(start.sampling):
            return
        row = self._rows.take(start.slot)
        shape = self._rows.num_rows, self._vocab_size
        self._counts = grow(self._counts, shape, 0)
        self._seen = grow(self._seen, shape, 0)
        self._numbers = grow(self._numbers, (3, len(self._counts)), 0)
        sampling = start.sampling
        numbers = sampling.repetition_penalty, sampling.frequency_penalty
        self._numbers[:, row] = send_floats(
            (*numbers, sampling.presence_penalty), self._device
        )
        outputs = send_ids(start.output_token_ids, self._device)
        prompt: Sequence[int] = start.prompt_token_ids
        if start.embedded:
            prompt = [token_id for token_id in prompt if token_id != NO_TOKEN]
        ones = torch.ones_like(outputs, dtype=torch.int32)
        self._counts[row].zero_().index_add_(0, outputs, ones)
        seen = torch.cat((send_ids(prompt, self._device), outputs))
        self._seen[row].zero_().index_fill_(0, seen, 1)

    def count(self, slots: list[int], token_ids: Tensor) -> None:
        """Count one new token of each slot; slots without penalties are left out."""
        places = self._rows.find_places(slots)
        if places:
            positions, rows = self._rows.locate(slots, places)
            tokens = token_ids[positions]
            # Invariant: a slot is sampled once in a step, so no pair comes twice.
            self._counts[rows, tokens] += 1
            # The host would wait for the device to read a Python True.
            self._seen[rows, tokens] = torch.ones_like(tokens, dtype=torch.bool)

    def find(self, slots: list[int], places: list[int]) -> RepeatedTokens:
        """Return the tokens that came before.

        Args:
          slots: all slots of the step.
          places: places of the slots with penalties among them.
        """
        positions, rows = self._rows.locate(slots, places)
        return RepeatedTokens(
            places=positions,
            rows=rows,
            counts=self._counts,
            seen=self._seen,
            penalties=self._numbers.index_select(1, rows),
        )
