"""The texts that the simulated device writes under grammars."""

from __future__ import annotations

from functools import partial
import random

import numpy as np
from tokenizers import Tokenizer

from trioserve.grammar.guide import Guide, count_words
from trioserve.grammar.matchers import Matchers, make_tokenizer
from trioserve.testing.tokenizer import IM_END
from trioserve.types.structured import Grammar

# Otherwise answers would hardly end before their length.
_END_PROBABILITY = 0.5


def find_end(tokenizer: Tokenizer) -> int:
    """Return the token that ends a text under a grammar."""
    token_id = tokenizer.token_to_id(IM_END)
    assert token_id is not None, "tiny_tokenizer has it"
    return int(token_id)


class GuidedTexts:
    """Opens texts under grammars.

    Args:
      tokenizer: of a model; see find_end.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._end_id = end_id = find_end(tokenizer)
        self._matchers = Matchers(
            partial(
                make_tokenizer,
                tokenizer.to_str(),
                vocab_size=tokenizer.get_vocab_size(),
                eos_token_ids=[end_id],
            )
        )

    def open(self, key: int, grammar: Grammar) -> GuidedText:
        """Begin a text; the same one for the same key and grammar."""
        matcher = self._matchers.build(grammar.text).open()
        return GuidedText(
            Guide(matcher, grammar, [self._end_id]),
            self._tokenizer,
            random.Random(key),
            end_id=self._end_id,
        )


class GuidedText:
    """One text: tokens that its grammar allows, up to its end."""

    def __init__(
        self, guide: Guide, tokenizer: Tokenizer, source: random.Random, *, end_id: int
    ) -> None:
        self._guide = guide
        self._tokenizer = tokenizer
        self._source = source
        self._end_id = end_id
        self._mask = np.zeros(count_words(tokenizer.get_vocab_size()), dtype=np.int32)
        self._token_ids: list[int] = []

    def find_token(self, index: int) -> int:
        """Return a token; the end is followed by more of it."""
        while len(self._token_ids) <= index:
            self._token_ids.append(self._choose())
        return self._token_ids[index]

    def write(self, num_tokens: int) -> str:
        """Return the text of the first tokens."""
        if num_tokens:
            self.find_token(num_tokens - 1)
        text: str = self._tokenizer.decode(self._token_ids[:num_tokens])
        return text

    def ends_within(self, num_tokens: int) -> bool:
        """Return whether the end is one of the first tokens."""
        return self.find_token(num_tokens - 1) == self._end_id

    def _choose(self) -> int:
        if self._token_ids[-1:] == [self._end_id]:
            return self._end_id
        self._guide.write_mask(self._mask)
        bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits).tolist()
        token_id: int = self._source.choice(allowed)
        if self._end_id in allowed and self._source.random() < _END_PROBABILITY:
            token_id = self._end_id
        if token_id != self._end_id:
            self._guide.read(token_id)
        return token_id
