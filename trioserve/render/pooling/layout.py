"""The special tokens that a tokenizer puts around a text, or around the two of a pair.

They are found once, from the tokens of a short text. So texts can be cut before their
special tokens are added, and a query in a hundred pairs is tokenized once.
`post_process` of the tokenizers library does the same, but takes as long and holds the
GIL.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tokenizers import Encoding, Tokenizer

from ...errors import UnsupportedModel

_PROBE = "a"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """A run of special tokens, or the place of a text.

    Args:
      text: the index of the text in this place; None for special tokens.
      type_id: the token type, which differs for the two texts of a pair.
    """

    text: int | None
    ids: array[int]
    type_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOut:
    """Token ids with the special tokens around them.

    Args:
      text_begin: the position at which the first text's own tokens begin.
      second_begin: the first position with the second text's type id; 0 for none.
    """

    token_ids: array[int]
    text_begin: int = 0
    second_begin: int = 0


class Layout:
    """The special tokens around one text or a pair; there may be none.

    Attributes:
      num_special: the number of added tokens.
    """

    def __init__(self, pieces: Sequence[_Piece]) -> None:
        self._pieces = tuple(pieces)
        self.num_special = sum(len(piece.ids) for piece in pieces if piece.text is None)

    def lay_out(self, *texts: array[int]) -> LaidOut:
        """Put special tokens around the tokens of texts."""
        token_ids: array[int] = array("i")
        text_begin = second_begin = 0
        for piece in self._pieces:
            if piece.type_id and not second_begin:
                second_begin = len(token_ids)
            if piece.text == 0:
                text_begin = len(token_ids)
            token_ids += piece.ids if piece.text is None else texts[piece.text]
        return LaidOut(
            token_ids=token_ids,
            text_begin=text_begin,
            # An empty second text without special tokens has no position.
            second_begin=second_begin if second_begin < len(token_ids) else 0,
        )


_NOTHING: array[int] = array("i")

# For texts that have their special tokens already, or must not have any.
BARE = Layout([_Piece(text=0, ids=_NOTHING, type_id=0)])
BARE_PAIR = Layout(
    [_Piece(text=0, ids=_NOTHING, type_id=0), _Piece(text=1, ids=_NOTHING, type_id=1)]
)


def find_layout(tokenizer: Tokenizer, *, num_texts: int) -> Layout:
    """Find the special tokens that a tokenizer puts around one text or two.

    Raises:
      UnsupportedModel: it does more than to add tokens.
    """
    second = None if num_texts == 1 else _PROBE
    whole = tokenizer.encode(_PROBE, second, add_special_tokens=True)
    layout = Layout(_read_pieces(whole))
    alone = array("i", tokenizer.encode(_PROBE, add_special_tokens=False).ids)
    laid_out = layout.lay_out(*[alone] * num_texts)
    if not alone or laid_out.token_ids.tolist() != whole.ids:
        raise UnsupportedModel(
            "of the tokenizer", "it does more than to add tokens around a text"
        )
    return layout


def _read_pieces(encoding: Encoding) -> list[_Piece]:
    rows = list(zip(encoding.sequence_ids, encoding.type_ids, encoding.ids))
    pieces = []
    for (text, type_id), group in groupby(rows, key=lambda row: row[:2]):
        ids = [] if text is not None else [row[2] for row in group]
        pieces.append(_Piece(text=text, ids=array("i", ids), type_id=type_id))
    return pieces
