"""The texts that the simulated device writes: each tells its prompt and its seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import random
import string

from tokenizers import Tokenizer

from ...types.output import SequenceError
from ...types.plan import SlotStart
from ..fake_device import FakeDevice

_LETTERS = string.ascii_lowercase + string.digits


class Texts:
    """The text that follows each prompt and seed: one letter for each token.

    Letters that follow each other differ, so a letter that is missing, or comes twice,
    shows. So does a letter of another text.

    Args:
      tokenizer: has a token for each ASCII letter and digit.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._letters: dict[int, list[str]] = {}
        self._sources: dict[int, random.Random] = {}
        vocabulary = tokenizer.get_vocab()
        self._ids = {letter: vocabulary[letter] for letter in _LETTERS}

    def write(self, key: int, num_letters: int) -> str:
        """Return the first letters of the text with some key."""
        letters = self._letters.setdefault(key, [])
        source = self._sources.setdefault(key, random.Random(key))
        while len(letters) < num_letters:
            others = [each for each in _LETTERS if each not in letters[-1:]]
            letters.append(source.choice(others))
        return "".join(letters[:num_letters])

    def find_token(self, key: int, index: int) -> int:
        return self._ids[self.write(key, index + 1)[index]]


def make_key(prompt_token_ids: Sequence[int], seed: int) -> int:
    """Return the key of the text that follows a prompt."""
    key = seed + 1
    for token_id in prompt_token_ids:
        key = (key * 1_000_003 + token_id + 1) % (2**61 - 1)
    return key


class TellingDevice(FakeDevice):
    """A fake device that writes these texts, and checks the blocks that it reads.

    Args:
      faults: the key of a text -> the index of the token that cannot be computed.
    """

    def __init__(
        self, texts: Texts, *, block_size: int, faults: Mapping[int, int]
    ) -> None:
        super().__init__(
            texts.find_token,
            block_size=block_size,
            reads_blocks=True,
            seed_of=_find_key,
            error=lambda key, index: (
                SequenceError() if faults.get(key) == index else None
            ),
        )


def _find_key(start: SlotStart) -> int:
    return make_key(start.prompt_token_ids, start.seed)
