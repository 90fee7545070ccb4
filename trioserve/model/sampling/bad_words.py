"""Ban the tokens that would complete a bad word of several tokens.

The sampler itself bans words of one token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...types.plan import SlotStart
from ...types.prompt import NO_TOKEN
from ..device.tensors import send_ids
from .rows import SlotRows, grow

# Fills prefixes before the first token of a word.
_ANYTHING = -2


class BadWords:
    """The bad words of all slots, and the last tokens of slots that have bad words.

    A word may begin in the prompt and end in the output, as in transformers'
    `generate(bad_words_ids=...)`; vLLM compares output tokens alone. The cost of a step
    does not depend on the length of a sequence: only as many last tokens are kept as the
    longest prefix has. They are kept on the device, because the host may not know the
    last token yet.

    Rows are given only to slots whose sequence has bad words of several tokens:

      tails     (num_rows, longest) int32             last tokens, the newest first;
                                                      filled up by NO_TOKEN, which is
                                                      part of no word
      prefixes  (num_rows, num_words, longest) int32  words without their last tokens,
                                                      the newest first
      endings   (num_rows, num_words) int64           their last tokens; -1: no word
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._rows = SlotRows(device)
        # Slot -> number of its words, and number of tokens of the longest prefix.
        self._sizes: dict[int, tuple[int, int]] = {}
        self._tails = torch.empty((0, 0), dtype=torch.int32, device=device)
        self._prefixes = torch.empty((0, 0, 0), dtype=torch.int32, device=device)
        self._endings = torch.empty((0, 0), dtype=torch.int64, device=device)

    def start(self, start: SlotStart) -> None:
        """Take the bad words of a sequence, in place of its slot's former one."""
        self._sizes.pop(start.slot, None)
        self._rows.release(start.slot)
        words = [word for word in start.sampling.bad_words if self._can_end(word)]
        if not words:
            return
        longest = max(len(word) for word in words) - 1
        self._sizes[start.slot] = len(words), longest
        row = self._rows.take(start.slot)
        self._make_room(len(words), longest)
        self._write_words(row, words, longest)
        self._write_tail(row, start, longest)

    def has_any(self, slots: list[int]) -> bool:
        """Return whether `ban` could change anything."""
        return self._rows.has_any(slots)

    def ban(self, scores: Tensor, slots: list[int]) -> None:
        """Set the scores of tokens that must not come next to -inf, in place.

        Args:
          scores: (num_slots, vocab_size) float32, contiguous
          slots: each at most once.
        """
        places = self._rows.find_places(slots)
        if not places:
            return
        positions, rows = self._rows.locate(slots, places)
        sizes = [self._sizes[slots[place]] for place in places]
        num_words, longest = (max(numbers) for numbers in zip(*sizes))
        tails = self._tails[:, :longest][rows]
        prefixes = self._prefixes[:, :num_words, :longest][rows]
        endings = self._endings[:, :num_words][rows]
        is_read = (prefixes == tails[:, None]) | (prefixes == _ANYTHING)
        is_next = is_read.all(dim=-1) & (endings >= 0)  # (num_places, num_words)
        limits = torch.where(is_next, -torch.inf, torch.inf)
        index = positions[:, None] * scores.shape[1] + endings.clamp(min=0)
        # A mask would have to be counted first, and the host would wait for the count.
        scores.view(-1).scatter_reduce_(0, index.view(-1), limits.view(-1), "amin")

    def append(self, slots: list[int], token_ids: Tensor) -> None:
        """Append one new token of each slot.

        Args:
          token_ids: (num_slots,) int64
        """
        places = self._rows.find_places(slots)
        if not places:
            return
        positions, rows = self._rows.locate(slots, places)
        newest = token_ids[positions, None].to(torch.int32)
        tails = torch.cat((newest, self._tails[rows, :-1]), dim=1)
        self._tails.index_copy_(0, rows, tails)

    def _can_end(self, word: tuple[int, ...]) -> bool:
        # Words with ids outside of the vocabulary cannot appear.
        return len(word) > 1 and 0 <= min(word) and max(word) < self._vocab_size

    def _make_room(self, num_words: int, longest: int) -> None:
        num_rows = self._rows.num_rows
        self._tails = grow(self._tails, (num_rows, longest), NO_TOKEN)
        self._prefixes = grow(self._prefixes, (num_rows, num_words, longest), _ANYTHING)
        self._endings = grow(self._endings, (num_rows, num_words), -1)

    def _write_words(
        self, row: int, words: list[tuple[int, ...]], longest: int
    ) -> None:
        numbers: list[int] = []
        for word in words:
            numbers += word[-2::-1]
            numbers += [_ANYTHING] * (longest + 1 - len(word))
        prefixes = send_ids(numbers, self._device).view(len(words), longest)
        self._prefixes[row].fill_(_ANYTHING)
        self._prefixes[row, : len(words), :longest].copy_(prefixes)
        endings = send_ids([word[-1] for word in words], self._device)
        self._endings[row].fill_(-1)
        self._endings[row, : len(words)].copy_(endings)

    def _write_tail(self, row: int, start: SlotStart, longest: int) -> None:
        # Both may be long, so they are cut before they are joined.
        prompt = start.prompt_token_ids[-longest:]
        outputs = start.output_token_ids[-longest:]
        tail = (prompt + outputs)[: -longest - 1 : -1]
        self._tails[row].fill_(NO_TOKEN)
        self._tails[row, : len(tail)].copy_(send_ids(tail, self._device))
