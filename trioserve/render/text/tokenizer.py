"""Text to token ids, bounded before and after, and cut where a request asks for it.

Blocking: runs in a renderer worker. The raw tokenizer is shared by all of them:
`encode_batch_fast` and `decode_batch` release the GIL (`encode` and `decode` hold it)
and change nothing in it, whereas setting truncation or padding for a call, as
transformers' `__call__` does, fails with "Already borrowed" while another thread is
inside. So nobody needs a copy, and an addition to its vocabulary would reach everyone.
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

# English has four to five characters in a token. A text with fewer for each token of the
# model may well fit, and is tokenized at once: else all of it would be read twice.
_LIKELY_CHARACTERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeOptions:
    """How a text becomes token ids.

    Args:
      add_special_tokens: the tokenizer's own, such as the one that begins a text.
      truncate_to: tokens that are kept at most; None keeps all and refuses what is
        longer than the model.
      truncation_side: where tokens are dropped.
      cache_salt: see types.prompt.Prompt.
    """

    add_special_tokens: bool = True
    truncate_to: int | None = None
    # The end of a prompt is what is answered; vLLM's default for generation too.
    truncation_side: Literal["left", "right"] = "left"
    cache_salt: str = ""


class TextTokenizer:
    """One model's tokenizer, with the model's length.

    Args:
      backend: nobody else changes it; without truncation or padding.
      max_model_len: tokens of prompt and output together.
    """

    def __init__(
        self, backend: Tokenizer, vocabulary: Vocabulary, *, max_model_len: int
    ) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        self._max_model_len = max_model_len

    def make_prompt(self, text: str, options: TokenizeOptions, *, param: str) -> Prompt:
        """Tokenize a text.

        Raises:
          ContextLengthExceeded: the model could not add a single token to it.
          InvalidParameter: it gives no tokens, or is no Unicode text.
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
        """Refuse a text that is too long even if all of its tokens are the longest.

        Raises:
          ContextLengthExceeded
        """
        if self._must_fit(options):
            self.check_num_characters(num_characters, param)

    def check_length(self, texts: Sequence[str], param: str) -> None:
        """Refuse texts that are too long together, after the first pieces that prove it.

        Raises:
          ContextLengthExceeded
          InvalidParameter: one is no Unicode text.
        """
        num_characters = sum(map(len, texts))
        self.check_num_characters(num_characters, param)
        for text in texts:
            check_encodable(text, param)
        limit = self._max_model_len
        if num_characters > _LIKELY_CHARACTERS * limit:
            # Where each character is a token, the first piece proves it.
            num_tokens = count_at_least(
                self._backend, texts, limit, size=limit + 2 * DOUBTED_TOKENS
            )
            self._check_lower_bound(num_tokens, param)

    def encode_parts(
        self, texts: Sequence[str], add_special_tokens: bool, *, param: str
    ) -> list[tuple[int, ...]]:
        """Return the ids of a text that was cut where something else stands in it.

        Raises:
          ContextLengthExceeded, InvalidParameter: as check_length.
        """
        self.check_length(texts, param)
        encodings = self._backend.encode_batch_fast(
            list(texts), add_special_tokens=False
        )
        ids = [tuple(encoding.ids) for encoding in encodings]
        if add_special_tokens:
            # What is put around one text is put around all of them together.
            first = self.encode(texts[0], True, param=param)
            begin = _find(first, ids[0])
            suffix = first[begin + len(ids[0]) :]
            ids[0] = first[:begin] + ids[0]
            ids[-1] += suffix
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        texts: list[str] = self._backend.decode_batch(
            [token_ids], skip_special_tokens=skip_special_tokens
        )
        return texts[0]

    def check_num_characters(self, num_characters: int, param: str) -> None:
        """Refuse what no tokenization can make short enough, before it takes time."""
        # Rounded up: as many tokens are needed even if all of them are the longest.
        num_tokens = -(-num_characters // self._vocabulary.longest_token)
        self._check_lower_bound(num_tokens, param)

    def _check_lower_bound(self, num_tokens: int, param: str) -> None:
        if num_tokens >= self._max_model_len:
            raise ContextLengthExceeded(
                num_tokens=num_tokens,
                limit=self._max_model_len,
                param=param,
                is_lower_bound=True,
            )

    def check_num_tokens(self, num_tokens: int, param: str) -> None:
        if num_tokens == 0:
            raise InvalidParameter(param, "must not be empty")
        # One output token must fit.
        if num_tokens >= self._max_model_len:
            raise ContextLengthExceeded(
                num_tokens=num_tokens, limit=self._max_model_len, param=param
            )

    def _must_fit(self, options: TokenizeOptions) -> bool:
        """Whether what is too long is refused: it is, where too much of it is kept."""
        limit = options.truncate_to
        return limit is None or limit >= self._max_model_len

    def _encode_end(
        self, text: str, options: TokenizeOptions, param: str
    ) -> tuple[int, ...]:
        """Tokenize more and more of the end that is kept, until there are tokens enough.

        A cut may change the tokens of the word that it goes through, so that it is made
        at a distance: as many tokens again as are kept, or as many as are doubted.
        """
        limit = options.truncate_to
        assert limit is not None, "only truncated texts are cut"
        enough = limit + max(limit, DOUBTED_TOKENS)
        # No token is longer, so that there are enough of them.
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
    """Drop the tokens that `options` has no room for."""
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
    """Refuse what is no Unicode text.

    Args:
      begin: where in what the client sent the text begins.

    Raises:
      InvalidParameter
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameter(
            param,
            f"character {begin + error.start} is half of a surrogate pair, which is "
            "no text",
        ) from None
