"""The texts that the simulated device writes: each tells its prompt and its seed.

Without a grammar, a token is a letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import random
import string

from tokenizers import Tokenizer

from trioserve.testing.fake_device import FakeDevice
from trioserve.types.output import SequenceError, StepResult
from trioserve.types.plan import SlotStart, StepPlan
from trioserve.types.structured import Grammar

from .guided import GuidedText, GuidedTexts

_LETTERS = string.ascii_lowercase + string.digits

# Of a grammar at one step. A thread computes its masks on a real device.
_LATE_PROBABILITY = 0.2


class Texts:
    """The text that follows each prompt and seed: one letter for each token.

    Letters that follow each other differ, so a letter that is missing, or comes twice,
    shows. So does a letter of another text. A text with a grammar has the tokens that the
    grammar allows.

    Args:
      tokenizer: has a token for each ASCII letter and digit.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._letters: dict[int, list[str]] = {}
        self._sources: dict[int, random.Random] = {}
        vocabulary = tokenizer.get_vocab()
        self._ids = {letter: vocabulary[letter] for letter in _LETTERS}
        self._guided_texts = GuidedTexts(tokenizer)
        self._guided: dict[int, GuidedText] = {}

    def forget(self) -> None:
        """Forget the texts so far, which would be written again in the same way."""
        self._letters.clear()
        self._sources.clear()
        self._guided.clear()

    def guide(self, key: int, grammar: Grammar) -> None:
        """Write the text with some key under a grammar."""
        if key not in self._guided:
            self._guided[key] = self._guided_texts.open(key, grammar)

    def find_guided(self, key: int) -> GuidedText | None:
        """Return the text with some key if it has a grammar, and has begun."""
        return self._guided.get(key)

    def write(self, key: int, num_tokens: int) -> str:
        """Return the first tokens of the text with some key."""
        if (guided := self._guided.get(key)) is not None:
            return guided.write(num_tokens)
        return self._write_letters(key, num_tokens)

    def find_token(self, key: int, index: int) -> int:
        if (guided := self._guided.get(key)) is not None:
            return guided.find_token(index)
        return self._ids[self._write_letters(key, index + 1)[index]]

    def _write_letters(self, key: int, num_letters: int) -> str:
        letters = self._letters.setdefault(key, [])
        source = self._sources.setdefault(key, random.Random(key))
        while len(letters) < num_letters:
            others = [each for each in _LETTERS if each not in letters[-1:]]
            letters.append(source.choice(others))
        return "".join(letters[:num_letters])


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
      lateness: decides at which steps grammars are late.
    """

    def __init__(
        self,
        texts: Texts,
        *,
        block_size: int,
        faults: Mapping[int, int],
        lateness: random.Random,
    ) -> None:
        super().__init__(
            texts.find_token,
            block_size=block_size,
            reads_blocks=True,
            is_late=lambda slot: slot in self._late,
            seed_of=self._begin,
            error=lambda key, index: (
                SequenceError() if faults.get(key) == index else None
            ),
        )
        self._texts = texts
        self._lateness = lateness
        self._with_grammar: set[int] = set()
        self._late: set[int] = set()

    def step(self, plan: StepPlan) -> StepResult:
        for start in plan.starts:
            self._with_grammar.discard(start.slot)
            if start.sampling.grammar is not None:
                self._with_grammar.add(start.slot)
        self._with_grammar.difference_update(plan.ends)
        self._late = {
            slot
            for slot in sorted(self._with_grammar)
            if self._lateness.random() < _LATE_PROBABILITY
        }
        return super().step(plan)

    def _begin(self, start: SlotStart) -> int:
        """Return the key of a sequence, which may go on where it was."""
        key = make_key(start.prompt_token_ids, start.seed)
        if start.sampling.grammar is not None:
            self._texts.guide(key, start.sampling.grammar)
        for index, token_id in enumerate(start.output_token_ids):
            written = self._texts.find_token(key, index)
            assert token_id == written, "a sequence goes on with its own tokens"
        return key
