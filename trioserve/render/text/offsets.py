"""The offsets of tokens in a text, in characters.

A token that begins inside of a character has the offset of this character.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from ...types.output import TextDelta
from .vocabulary import Vocabulary

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")

# Characters that a tokenizer drops from a text at one place. Nobody knows how many that may be.
_MAX_DROPPED = 16


class _Reader:
    """Reads the bytes of one token after the other.

    Args:
      drops_space: the text lacks a space with which the tokens begin.
    """

    def __init__(self, *, drops_space: bool) -> None:
        self._drops_space = drops_space
        self._utf8 = _Utf8Decoder(errors="replace")

    def read(self, data: bytes) -> tuple[int, str]:
        """Read the bytes of a token.

        Returns:
          how many characters end before the token: 1 if the text so far ends inside of a
            character that the token does not continue; such a part becomes U+FFFD
          the text that is complete now, with that U+FFFD
        """
        if self._drops_space and data:
            self._drops_space = False
            data = data.removeprefix(b" ")
        if not data:
            return 0, ""
        text = self._utf8.decode(data[:1])
        part = self._utf8.getstate()[0]
        # Python waits for the third byte of half of a surrogate pair, but each of its bytes
        # becomes a character.
        num_parts = bool(part) + (b"\xed\xa0" <= part < b"\xee")
        # The first byte is in the last character so far, whole or not.
        return len(text) + num_parts - 1, text + self._utf8.decode(data[1:])


class TextOffsets:
    """Finds where tokens begin in the text that a Detokenizer makes of them.

    Args:
      at_start, skip_special_tokens: as for the Detokenizer.
      begin: the offset of the text in a longer one.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        at_start: bool,
        skip_special_tokens: bool,
        begin: int = 0,
    ) -> None:
        self._spell = vocabulary.choose_speller(skip_special_tokens=skip_special_tokens)
        self._reader = _Reader(drops_space=at_start and vocabulary.drops_first_space)
        self._offset = begin
        self._end = begin

    def push(self, delta: TextDelta) -> list[int]:
        """Return where the tokens of the next delta begin.

        The text of tokens may still be held back. If it ends with the delta, tokens without
        a text stand at its end.
        """
        offsets = [self._read(token_id) for token_id in delta.token_ids]
        self._end += len(delta.text)
        if delta.finish_reason is None:
            return offsets
        return [min(offset, self._end) for offset in offsets]

    def _read(self, token_id: int) -> int:
        num_before, text = self._reader.read(self._spell(token_id))
        begin = self._offset + num_before
        self._offset += len(text)
        return begin


def locate_tokens(
    vocabulary: Vocabulary, token_ids: Iterable[int], text: str
) -> list[int]:
    """Return where tokens begin in the text that they encode.

    The text need not have the special tokens, nor the space that some tokenizers add.
    If the tokenizer has changed a word of the text, the offsets in it are not exact.
    """
    reader = _Reader(drops_space=vocabulary.drops_first_space)
    offsets = []
    position = 0
    for token_id in token_ids:
        data = vocabulary.token_bytes(token_id)
        if token_id in vocabulary.special_token_ids and not text.startswith(
            data.decode(errors="replace"), position
        ):
            data = b""
        num_before, piece = reader.read(data)
        begin, end = _find(text, piece, position)
        offsets.append(min(begin + num_before, len(text)))
        position = min(end, len(text))
    return offsets


def _find(text: str, piece: str, position: int) -> tuple[int, int]:
    """Return where a piece of a text begins and ends, which should be at a position."""
    if text.startswith(piece, position):
        return position, position + len(piece)
    if piece[0] == " " and text.startswith(piece[1:], position):
        return position, position + len(piece) - 1
    # A tokenizer may have joined characters or dropped spaces before it.
    found = text.find(piece, position, position + len(piece) + _MAX_DROPPED)
    begin = position if found < 0 else found
    return begin, begin + len(piece)
