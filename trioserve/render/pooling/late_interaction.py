"""Prepares queries and documents for late interaction (a vector for each token).

Queries are filled up with tokens that mean nothing, but have vectors. In documents some
words, such as punctuation, have no vectors.

Source: preprocess of Transformer and forward of MultiVectorMask, sentence-transformers
6.2 (there from PyLate and from Stanford's ColBERT).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from ...errors import WeightsBroken
from ...types.sentence import QueryExpansion, SentenceFolder
from .texts import Kind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class LateInteraction:
    """The lengths, fillers and skipped words of one model.

    Raises:
      WeightsBroken: the tokenizer does not have the filler that the model's files name.
    """

    def __init__(
        self, sentence: SentenceFolder, tokenizer: PreTrainedTokenizerBase
    ) -> None:
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


def _find_words(
    words: tuple[str, ...], tokenizer: PreTrainedTokenizerBase
) -> frozenset[int]:
    """Return the ids of words that are single tokens; other words have no effect."""
    found = (_find_token(word, tokenizer) for word in words)
    return frozenset(token_id for token_id in found if token_id is not None)


def _find_token(word: str, tokenizer: PreTrainedTokenizerBase) -> int | None:
    token_id = tokenizer.convert_tokens_to_ids(word)
    if token_id == tokenizer.unk_token_id and word != tokenizer.unk_token:
        return None
    assert token_id is None or isinstance(token_id, int), "one word has one id"
    return token_id


def _find_filler(expansion: QueryExpansion, tokenizer: PreTrainedTokenizerBase) -> int:
    name = expansion.token or tokenizer.mask_token or tokenizer.eos_token
    token_id = None if name is None else _find_token(str(name), tokenizer)
    if token_id is None:
        raise WeightsBroken(
            tokenizer.name_or_path,
            f"queries are filled up with {name!r}, which is no token",
        )
    if tokenizer.padding_side != "right":
        raise WeightsBroken(
            tokenizer.name_or_path, "queries cannot be filled up on their left"
        )
    return token_id
