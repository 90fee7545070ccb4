"""Turns text into token ids, within the model's length or a request's, and back.

Blocking: runs in a renderer worker. All workers share the raw tokenizer.
`encode_batch_fast` and `decode_batch` release the GIL (`encode` and `decode` hold it)
and change nothing in the tokenizer. transformers' `__call__` sets truncation or padding
for the call instead, which fails with "Already borrowed" while another thread is
inside. An addition to the vocabulary would reach all workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokenizers import Tokenizer

from ...errors import ContextLengthExceeded, InvalidParameter
from ...types.prompt import Prompt
from .pieces import DOUBTED_TOKENS, count_at_least
from .vocabulary import Vocabulary

# English has four to five characters in a token. A text with fewer characters for each
# token of the model's length probably fits, so it is tokenized without a count in
# pieces before, which would read all of it twice.
_LIKELY_CHARACTERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeOptions:
    """Options of tokenizing one text.

    Args:
      add_special_tokens: add the tokenizer's special tokens, such as one at the start.
      truncate_to: the most tokens that are kept; None keeps all, and refuses a text
        that is longer than the model.
      truncation_side: the side on which tokens are dropped.
      cache_salt: see types.prompt.Prompt.
    """

    add_special_tokens: bool = True
    truncate_to: int | None = None
    # The model answers the end of a prompt. vLLM has the same default for generation.
    truncation_side: Literal["left", "right"] = "left"
    cache_salt: str = ""


class IdDecoder:
    """The half of a tokenizer that takes token ids.

    Args:
      backend: a tokenizer without truncation or padding, which nobody changes.
      highest_id: the largest token id that the tokenizer and the model know.
    """

    def __init__(self, backend: Tokenizer, highest_id: int) -> None:
        self._backend = backend
        self._highest_id = highest_id

    def check_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Check token ids from a client.

        Raises:
          InvalidParameter: the tokenizer does not have one of the ids.
        """
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) <= self._highest_id:
            raise InvalidParameter(
                param, f"ids must be between 0 and {self._highest_id}"
            )

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        texts: list[str] = self._backend.decode_batch(
            [token_ids], skip_special_tokens=skip_special_tokens
        )
        return texts[0]


class TextTokenizer(IdDecoder):
    """A model's tokenizer, with the model's length.

    Args:
      backend: a tokenizer without truncation or padding; it must not be changed.
      max_model_len: tokens of prompt and output together.
    """

    def __init__(
        self, backend: Tokenizer, vocabulary: Vocabulary, *, max_model_len: int
    ) -> None:
        super().__init__(backend, vocabulary.size - 1)
        self._vocabulary = vocabulary
        self._max_model_len = max_model_len

    def make_prompt(self, text: str, options: TokenizeOptions, *, param: str) -> Prompt:
        """Tokenize a text.

        Raises:
          ContextLengthExceeded: the model could not add a single token to it.
          InvalidParameter: it has no tokens, or is not Unicode text.
        """
        if self._must_fit(options):
            self.check_length([text], param)
            ids = self.encode(text, options.add_special_tokens, param=param)
        else:
            ids = self._encode_end(text, options, param)
        kept = cut(ids, options)
        if len(kept) < len(ids):
            text = self.decode(kept, skip_special_tokens=False)
        self.check_num_tokens(len(kept), param)
        return Prompt(token_ids=kept, text=text, cache_salt=options.cache_salt)

    def encode(
        self, text: str, add_special_tokens: bool, *, param: str
    ) -> tuple[int, ...]:
        check_encodable(text, param)
        encodings = self._backend.encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )
        return tuple(encodings[0].ids)

    def check_size(
        self, num_characters: int, options: TokenizeOptions, param: str
    ) -> None:
        """Refuse a text that is too long even if each of its tokens is the longest one.

        Raises:
          ContextLengthExceeded: it is too long.
        """
        if self._must_fit(options):
            self.check_num_characters(num_characters, param)

    def check_length(self, texts: Sequence[str], param: str) -> None:
        """Refuse texts that are too long together, without reading all of them.

        Raises:
          ContextLengthExceeded: they are too long.
          InvalidParameter: one is not Unicode text.
        """
        num_characters = sum(map(len, texts))
        self.check_num_characters(num_characters, param)
        for text in texts:
            check_encodable(text, param)
        limit = self._max_model_len
        if num_characters > _LIKELY_CHARACTERS * limit:
            # If each character is a token, the first piece is enough.
            num_tokens = count_at_least(
                self._backend, texts, limit, size=limit + 2 * DOUBTED_TOKENS
            )
            if num_tokens >= limit:
                raise self._too_long(num_tokens, param, is_lower_bound=True)

    def encode_parts(
        self, texts: Sequence[str], add_special_tokens: bool, *, param: str
    ) -> list[tuple[int, ...]]:
        """Return the token ids of the parts of one text, between which vectors stand.

        Raises:
          ContextLengthExceeded, InvalidParameter: as check_length.
        """
        self.check_length(texts, param)
        encodings = self._backend.encode_batch_fast(
            list(texts), add_special_tokens=False
        )
        ids = [tuple(encoding.ids) for encoding in encodings]
        if add_special_tokens:
            # The special tokens around one text go around all parts together.
            first = self.encode(texts[0], True, param=param)
            begin = _find(first, ids[0])
            suffix = first[begin + len(ids[0]) :]
            ids[0] = first[:begin] + ids[0]
            ids[-1] += suffix
        return ids

    def check_num_characters(self, num_characters: int, param: str) -> None:
        """Refuse a text that is too long for any tokenization, before it takes time."""
        # Rounded up: the number of tokens if all of them were the longest one.
        num_tokens = -(-num_characters // self._vocabulary.longest_token)
        if num_tokens >= self._max_model_len:
            raise self._too_long(num_tokens, param, is_lower_bound=True)

    def check_num_tokens(self, num_tokens: int, param: str) -> None:
        if num_tokens == 0:
            raise InvalidParameter(param, "must not be empty")
        # One output token must fit.
        if num_tokens >= self._max_model_len:
            raise self._too_long(num_tokens, param)

    def _too_long(
        self, num_tokens: int, param: str, *, is_lower_bound: bool = False
    ) -> ContextLengthExceeded:
        return ContextLengthExceeded(
            num_tokens=num_tokens,
            limit=self._max_model_len,
            param=param,
            is_lower_bound=is_lower_bound,
        )

    def _must_fit(self, options: TokenizeOptions) -> bool:
        """Return whether a text that is too long is refused, because no truncation helps."""
        limit = options.truncate_to
        return limit is None or limit >= self._max_model_len

    def _encode_end(
        self, text: str, options: TokenizeOptions, param: str
    ) -> tuple[int, ...]:
        """Tokenize longer and longer parts at the kept end, up to enough tokens.

        A cut may change the tokens of the word around it. So the text is cut at a
        distance from the kept tokens: as many tokens again, or DOUBTED_TOKENS if that
        is more.
        """
        limit = options.truncate_to
        assert limit is not None, "only truncated texts are cut"
        enough = limit + max(limit, DOUBTED_TOKENS)
        # So many characters have enough tokens even if each token is the longest one.
        longest = min(len(text), self._vocabulary.longest_token * enough)
        length = 2 * enough
        while True:
            is_left = options.truncation_side == "left"
            end = text[-length:] if is_left else text[:length]
            ids = self.encode(end, options.add_special_tokens, param=param)
            if len(ids) >= enough or length >= longest:
                return ids
            length *= 4


def cut(token_ids: tuple[int, ...], options: TokenizeOptions) -> tuple[int, ...]:
    """Drop tokens above the limit of `options`."""
    limit = options.truncate_to
    if limit is None or len(token_ids) <= limit:
        return token_ids
    if options.truncation_side == "left":
        return token_ids[len(token_ids) - limit :]
    return token_ids[:limit]


def _find(haystack: tuple[int, ...], needle: tuple[int, ...]) -> int:
    for begin in range(len(haystack) - len(needle) + 1):
        if haystack[begin : begin + len(needle)] == needle:
            return begin
    raise AssertionError("special tokens are put around a text and change none of it")


def check_encodable(text: str, param: str, begin: int = 0) -> None:
    """Refuse a string that is not Unicode text, such as half of a surrogate pair.

    Args:
      begin: the text's offset in the string that the client sent.

    Raises:
      InvalidParameter: it is not Unicode text.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameter(
            param,
            f"character {begin + error.start} is half of a surrogate pair, which is "
            "no text",
        ) from None
