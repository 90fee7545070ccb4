"""Prepares queries and documents for late interaction (a vector for each token).

Queries are filled up with tokens that mean nothing, but have vectors. In documents some
words, such as punctuation, have no vectors.

Source: preprocess of Transformer and forward of MultiVectorMask, sentence-transformers
6.2 (there from PyLate and from Stanford's ColBERT).
"""

from __future__ import annotations

from array import array

from ...errors import WeightsBroken
from ...types.sentence import QueryExpansion, SentenceFolder
from ..text.model_tokenizer import ModelTokenizer
from .texts import Kind

# The special tokens that fill up queries if the model's files name none.
_FILLERS = ("mask_token", "eos_token")


class LateInteraction:
    """The lengths, fillers and skipped words of one model.

    Raises:
      WeightsBroken: the tokenizer does not have the filler that the model's files name.
    """

    def __init__(self, sentence: SentenceFolder, tokenizer: ModelTokenizer) -> None:
        self._sentence = sentence
        self._skipped = _find_words(sentence.skipped_words, tokenizer)
        self._filler = -1
        if sentence.query_expansion is not None:
            self._filler = _find_filler(sentence.query_expansion, tokenizer)

    def find_limit(self, kind: Kind | None) -> int | None:
        """Return the most tokens that a text keeps; None for the model's length."""
        if kind != "query":
            return self._sentence.document_length
        expansion, length = self._sentence.query_expansion, self._sentence.query_length
        if expansion is None:
            return length
        if expansion.is_limit:
            return expansion.length
        return None if length is None else max(length, expansion.length)

    def fill_up(self, token_ids: array[int], kind: Kind | None) -> int:
        """Append the fillers; return how many of them attention does not see."""
        expansion = self._sentence.query_expansion
        if kind != "query" or expansion is None:
            return 0
        missing = max(0, expansion.length - len(token_ids))
        token_ids.extend([self._filler] * missing)
        return 0 if expansion.is_seen else missing

    def find_skipped(self, token_ids: array[int], kind: Kind | None) -> tuple[int, ...]:
        """Return the positions that have no vector."""
        if kind == "query" or not self._skipped:
            return ()
        skipped = self._skipped
        return tuple(i for i, token in enumerate(token_ids) if token in skipped)


def _find_words(words: tuple[str, ...], tokenizer: ModelTokenizer) -> frozenset[int]:
    """Return the ids of words that are single tokens; other words have no effect."""
    found = map(tokenizer.backend.token_to_id, words)
    return frozenset(token_id for token_id in found if token_id is not None)


def _find_filler(expansion: QueryExpansion, tokenizer: ModelTokenizer) -> int:
    names = (expansion.token, *map(tokenizer.special_tokens.get, _FILLERS))
    name = next(filter(None, names), None)
    token_id = None if name is None else tokenizer.backend.token_to_id(name)
    if token_id is None:
        raise WeightsBroken(
            tokenizer.source,
            f"queries are filled up with {name!r}, which is not a token",
        )
    if tokenizer.padding_side != "right":
        raise WeightsBroken(
            tokenizer.source, "queries cannot be filled up on their left"
        )
    return token_id
