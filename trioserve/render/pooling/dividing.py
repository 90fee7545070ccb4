"""Divides a long text into pieces that have the tokens of the whole text.

A text of megabytes that is cut to 512 tokens, or refused, must not be tokenized as a
whole. Most tokenizers read each word for itself. Then a text is read piece by piece,
from the end that is kept, until there are enough tokens. Each piece begins at a
boundary of words. The boundaries are found once for each tokenizer, by trying them on
samples. For a tokenizer that has no such boundaries (it may put something before the
first word), a text is one piece, and tokenizer.py finds another way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import re

from tokenizers import Tokenizer

from ..text.vocabulary import list_decoders
from .texts import Side

# Boundaries for tokenizers that split at white space first, and for tokenizers that may
# have a full stop and the line end behind it in one token.
_AT_WHITE_SPACE = r"(?<=\S)(?=[ \n])"
_AT_SPACE = r"(?<=\w)(?= )"
# Ideographic: stop, comma; full width: comma, and ! ? ; :
_STOPS = "\u3002\u3001\uff0c\uff01\uff1f\uff1b\uff1a"

# Samples that must have the same tokens whole and divided, for each kind of boundary.
_SPACED = (
    "Hello world, it's 12 345 x_  two \u00a0 naïve café\u00a0   9 Zwölf (größere) ÅÄÖ",
    "мир 你好。\n你好 e\u0301 return [1, 2, 3]\n\n  x y! 5\n z.\n\n\nx --\n# a\n",
)
_STOPPED = ("你好%s世界%s大家", "こんにちは%sabc%s12")

# Characters that are searched in one call, which holds the GIL.
_WINDOW = 1024


class Divider:
    """Divides texts for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._boundary = _find_boundary(tokenizer)

    def divide(self, text: str, size: int, side: Side) -> Iterator[tuple[int, str]]:
        """Yield the offsets and the texts of pieces of at least `size` characters.

        Args:
          side: the side on which tokens may be left out; pieces start at the other one.
        """
        if self._boundary is None or len(text) <= 2 * size:
            yield 0, text
        elif side == "right":
            yield from self._divide_forwards(text, size, self._boundary)
        else:
            yield from self._divide_backwards(text, size, self._boundary)

    def _divide_forwards(
        self, text: str, size: int, boundary: re.Pattern[str]
    ) -> Iterator[tuple[int, str]]:
        begin = 0
        while begin < len(text):
            end = _find_after(text, begin + size, boundary)
            yield begin, text[begin:end]
            begin = end

    def _divide_backwards(
        self, text: str, size: int, boundary: re.Pattern[str]
    ) -> Iterator[tuple[int, str]]:
        end = len(text)
        while end > 0:
            begin = _find_before(text, end - size, boundary)
            yield begin, text[begin:end]
            end = begin


def _find_after(text: str, position: int, boundary: re.Pattern[str]) -> int:
    while position < len(text):
        if found := boundary.search(text, position, position + _WINDOW):
            return found.start()
        position += _WINDOW
    return len(text)


def _find_before(text: str, position: int, boundary: re.Pattern[str]) -> int:
    while position > 0:
        begin = max(0, position - _WINDOW)
        found = None
        for found in boundary.finditer(text, begin, position):
            pass
        if found is not None:
            return found.start()
        position = begin
    return 0


def _find_boundary(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Return the boundaries of words; None if the tokenizer has none."""
    trial = _Trial(tokenizer)
    for boundary in (_AT_WHITE_SPACE, _AT_SPACE):
        if trial.divides(boundary, _SPACED):
            stops = filter(trial.divides_at_stop, _STOPS)
            return re.compile("|".join([boundary, *map(_at_stop, stops)]))
    return None


def _at_stop(stop: str) -> str:
    return rf"(?<=\w)(?={stop})"


def _spell_words(tokenizer: Tokenizer) -> str:
    """Join the words of the vocabulary, with white space as in texts."""
    words = tokenizer.get_vocab(with_added_tokens=True)
    is_byte_level = "ByteLevel" in list_decoders(tokenizer)
    spelt: dict[str, str | int | None] = {"\u2581": " "}
    if is_byte_level:
        spelt = {"\u0120": " ", "\u010a": "\n"}
    # The separator is white space, but none of the boundaries contains it.
    return "\x1f".join(words).translate(str.maketrans(spelt))


class _Trial:
    """Tries whether divided texts have the same tokens as whole texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._words = _spell_words(tokenizer)
        self._takes_spaces = any(
            token.rstrip for token in tokenizer.get_added_tokens_decoder().values()
        )

    def divides(self, boundary: str, samples: Iterable[str]) -> bool:
        # An added token may include the space behind it, and a tokenizer that does not
        # split words may have whole phrases in its vocabulary.
        if self._takes_spaces or re.search(boundary, self._words):
            return False
        return all(
            self._encode(sample)
            == [i for part in re.split(boundary, sample) for i in self._encode(part)]
            for sample in samples
        )

    def divides_at_stop(self, stop: str) -> bool:
        samples = (sample.replace("%s", stop) for sample in _STOPPED)
        return self.divides(_at_stop(stop), samples)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids
