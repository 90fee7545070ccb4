"""Tokenizes texts for models that pool, each only as far as its tokens are needed.

Blocking: runs in a renderer worker. As in text/tokenizer.py, the raw tokenizer is
shared and never changed. Special tokens are added later (layout.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Encoding, Tokenizer

from ..text.tokenizer import IdDecoder, check_encodable
from .dividing import Divider
from .texts import Side

# Characters of the texts in one call, unless one text is longer: half a millisecond.
# The tokenizers library spreads the texts of a call over all cores. With larger calls
# 32 texts of 512 tokens would take 7 ms instead of 15 on two cores, but the event loop
# and the device's thread would wait for a core: up to 5 ms for the loop instead of 0.9.
# The environment variable TOKENIZERS_PARALLELISM would change this, but for the whole
# process of an embedder.
_CALL_CHARACTERS = 2048

# Characters of a piece of a long text, for each token that is needed: probably enough,
# because English has four to five in a token. The maximum keeps a call short: 16384
# characters take 4 ms, and the copy of their ids, which holds the GIL, 0.1 ms.
_CHARACTERS_PER_TOKEN = 8
_MIN_PIECE = 1024
_MAX_PIECE = 16384
# A piece is longer if the text has no boundary at which to divide it. Above this length
# the text is cut anywhere, and so many tokens next to the cut are not used.
_MAX_UNDIVIDED = 2 * _MAX_PIECE
_DOUBTED_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A text, and the number of its tokens that are needed.

    Args:
      side: the side on which tokens may be left out.
      param: the text's field in the request, for errors.
    """

    text: str
    num_tokens: int
    side: Side
    param: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenTokens:
    """A text's tokens, without special ones.

    Args:
      token_ids: all tokens; or the first or last ones of the whole text, at least as
        many as were needed.
      is_whole: whether these are all tokens.
    """

    token_ids: array[int]
    is_whole: bool = True


class PoolingTokenizer(IdDecoder):
    """One model's tokenizer.

    Args:
      backend: a tokenizer without truncation or padding; it must not be changed.
      vocab_size: the number of ids that the model has. Some models have more than
        their tokenizer, and a few have less.
    """

    def __init__(self, backend: Tokenizer, *, vocab_size: int) -> None:
        ids = backend.get_vocab(with_added_tokens=True).values()
        super().__init__(backend, min(max(ids, default=-1), vocab_size - 1))
        self._divider = Divider(backend)

    def take(self, demands: Sequence[Demand]) -> list[TakenTokens]:
        """Tokenize texts, each only as far as its tokens are needed.

        Raises:
          InvalidParameter: a text is not Unicode text.
        """
        taken: list[TakenTokens] = []
        for group in _group(demands):
            if len(group) == 1:
                taken.append(self._take_one(group[0]))
            else:
                taken += self._take_all(group)
        return taken

    def encode(self, text: str) -> array[int]:
        """All tokens of a text."""
        encodings = self._backend.encode_batch_fast([text], add_special_tokens=False)
        return _read_ids(encodings[0])

    def shorten(self, text: str, num_tokens: int, param: str) -> str:
        """Return the part of a text that its first tokens cover.

        Raises:
          InvalidParameter: it is not Unicode text.
        """
        for begin, piece in self._divider.divide(
            text, _choose_size(num_tokens), "right"
        ):
            check_encodable(piece, param, begin)
            # The fast variant returns no offsets.
            encoding = self._backend.encode_batch([piece], add_special_tokens=False)[0]
            if len(encoding) > num_tokens:
                return text[: begin + _find_end(encoding, num_tokens)]
            num_tokens -= len(encoding)
        return text

    def read_ids(self, token_ids: Sequence[int], param: str) -> array[int]:
        """Check and copy token ids; raises as check_ids does."""
        self.check_ids(token_ids, param)
        return array("i", token_ids)

    def token_text(self, token_id: int) -> str:
        return self._backend.id_to_token(token_id) or ""

    def _take_all(self, demands: Sequence[Demand]) -> Iterator[TakenTokens]:
        for demand in demands:
            check_encodable(demand.text, demand.param)
        encodings = self._backend.encode_batch_fast(
            [demand.text for demand in demands], add_special_tokens=False
        )
        return (TakenTokens(token_ids=_read_ids(encoding)) for encoding in encodings)

    def _take_one(self, demand: Demand) -> TakenTokens:
        text, side = demand.text, demand.side
        pieces: list[array[int]] = []
        missing = demand.num_tokens
        num_characters = 0
        size = _choose_size(demand.num_tokens)
        for begin, piece in self._divider.divide(text, size, side):
            if len(piece) > _MAX_UNDIVIDED:
                return self._take_end(demand)
            check_encodable(piece, demand.param, begin)
            pieces.append(self.encode(piece))
            missing -= len(pieces[-1])
            num_characters += len(piece)
            if missing <= 0:
                break
        token_ids: array[int] = array("i")
        for ids in pieces if side == "right" else reversed(pieces):
            token_ids += ids
        return TakenTokens(token_ids=token_ids, is_whole=num_characters == len(text))

    def _take_end(self, demand: Demand) -> TakenTokens:
        """Tokenize longer and longer parts of a text that cannot be divided.

        Tokens at some distance from the cut do not depend on the rest of the text,
        unless the text is a single word, or a run of spaces, up to there.
        """
        length = _MAX_UNDIVIDED
        while length < len(demand.text):
            token_ids = self._encode_end(demand, length)
            num_certain = len(token_ids) - _DOUBTED_TOKENS
            if num_certain >= demand.num_tokens:
                return TakenTokens(
                    token_ids=cut(token_ids, num_certain, demand.side), is_whole=False
                )
            length *= 4
        return TakenTokens(token_ids=self._encode_end(demand, len(demand.text)))

    def _encode_end(self, demand: Demand, length: int) -> array[int]:
        begin = 0 if demand.side == "right" else len(demand.text) - length
        part = demand.text[begin : begin + length]
        check_encodable(part, demand.param, begin)
        return self.encode(part)


def cut(token_ids: array[int], limit: int, side: Side) -> array[int]:
    """Drop tokens above a limit, on one side."""
    if side == "right":
        return token_ids[:limit]
    return token_ids[max(0, len(token_ids) - limit) :]


def _read_ids(encoding: Encoding) -> array[int]:
    return array("i", encoding.ids)


def _choose_size(num_tokens: int) -> int:
    return min(max(_MIN_PIECE, _CHARACTERS_PER_TOKEN * num_tokens), _MAX_PIECE)


def _find_end(encoding: Encoding, num_tokens: int) -> int:
    """Return the offset at which the first so many tokens end."""
    if num_tokens == 0:
        return 0
    offsets = encoding.token_to_chars(num_tokens - 1)
    assert offsets is not None, "each token of a text covers some of its characters"
    end: int = offsets[1]
    return end


def _group(demands: Sequence[Demand]) -> Iterator[list[Demand]]:
    """Group the texts of one call; a long text is alone."""
    group: list[Demand] = []
    num_characters = 0
    for demand in demands:
        num_characters += len(demand.text)
        if group and num_characters > _CALL_CHARACTERS:
            yield group
            group = []
            num_characters = len(demand.text)
        group.append(demand)
    if group:
        yield group
