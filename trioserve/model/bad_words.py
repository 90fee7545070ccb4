"""Find the tokens that would complete what a sequence must not say.

Words of one token are no subject of this module: they are banned wherever they stand.
"""

from __future__ import annotations

from ..steps import SlotStart

# Prefix -> the tokens that must not follow it.
_Completions = dict[tuple[int, ...], set[int]]


class BadWords:
    """The bad words of all slots, and the last tokens of those that have any.

    A word may begin in the prompt and end in the output, as in transformers'
    `generate(bad_words_ids=...)`; vLLM compares output tokens alone. What a step
    costs does not depend on how long a sequence is: as many of its last tokens are
    kept as the longest prefix has. They are kept here, on the host and as they came,
    because the runner's own table holds token 0 where a position has no token. Such a
    position is part of no word.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._tails: dict[int, _Tail] = {}

    def start(self, start: SlotStart) -> None:
        """Take a sequence's bad words; those of the slot's former one are forgotten."""
        self._tails.pop(start.slot, None)
        completions = self._split(start.sampling.bad_words)
        if completions:
            self._tails[start.slot] = _Tail(completions, start)

    def find(self, slots: list[int]) -> list[tuple[int, int]]:
        """Find the tokens that must not come next.

        Returns:
          (row, token id), each pair once; rows count the slots.
        """
        if not self._tails:
            return []
        return [
            (row, token_id)
            for row, slot in enumerate(slots)
            if slot in self._tails
            for token_id in self._tails[slot].find()
        ]

    def append(self, slots: list[int], token_ids: list[int]) -> None:
        """Remember one sampled token of each of the slots."""
        if not self._tails:
            return
        for slot, token_id in zip(slots, token_ids):
            if slot in self._tails:
                self._tails[slot].append(token_id)

    def _split(self, bad_words: tuple[tuple[int, ...], ...]) -> _Completions:
        completions: _Completions = {}
        for word in bad_words:
            # Ids that the model does not have never come, and neither do such words.
            is_possible = 0 <= min(word) and max(word) < self._vocab_size
            if is_possible and len(word) > 1:
                completions.setdefault(word[:-1], set()).add(word[-1])
        return completions


class _Tail:
    """The end of one sequence, as long as its longest prefix."""

    def __init__(self, completions: _Completions, start: SlotStart) -> None:
        self._completions = completions
        self._lengths = tuple({len(prefix) for prefix in completions})
        self._longest = max(self._lengths)
        # Both are cut before they are joined: they may be long.
        prompt = start.prompt_token_ids[-self._longest :]
        outputs = start.output_token_ids[-self._longest :]
        self._tokens = (prompt + outputs)[-self._longest :]

    def find(self) -> set[int]:
        # Where fewer tokens stand than a length wants, a slice is all of them: then
        # what another length finds is found twice.
        return {
            token_id
            for length in self._lengths
            for token_id in self._completions.get(self._tokens[-length:], ())
        }

    def append(self, token_id: int) -> None:
        self._tokens = (*self._tokens, token_id)[-self._longest :]
