"""Where a long text may be divided without a change of its tokens.

A text of megabytes that is cut to 512 tokens, or refused, must not be tokenized as a
whole. Most tokenizers take words for themselves: a text is read piece by piece, from the
end that counts, until there are tokens enough. Each piece begins where in any text a new
word begins, and what such places are is tried out once for each tokenizer. One that does
not take words so (it puts something before the first one, say) has its texts in one
piece, and tokenizer.py finds another way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import re

from tokenizers import Tokenizer

from ..text.vocabulary import list_decoders
from .texts import Side

# Where words begin for tokenizers that split at white space before all else, and for
# those that may have a line end after a full stop in one token with it.
_AT_WHITE_SPACE = r"(?<=\S)(?=[ \n])"
_AT_SPACE = r"(?<=\w)(?= )"
# Ideographic: stop, comma; full width: comma, and ! ? ; :
_STOPS = "\u3002\u3001\uff0c\uff01\uff1f\uff1b\uff1a"

# What must have the same tokens divided as whole, for each kind of place.
_SPACED = (
    "Hello world, it's 12 345 x_  two \u00a0 naïve café\u00a0   9 Zwölf (größere) ÅÄÖ",
    "мир 你好。\n你好 e\u0301 return [1, 2, 3]\n\n  x y! 5\n z.\n\n\nx --\n# a\n",
)
_STOPPED = ("你好%s世界%s大家", "こんにちは%sabc%s12")

# Characters that are looked through in one call, which holds the GIL.
_WINDOW = 1024


class Divider:
    """Divides texts for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._boundary = _find_boundary(tokenizer)

    def divide(self, text: str, size: int, side: Side) -> Iterator[tuple[int, str]]:
        """Yield pieces of at least `size` characters with where they begin.

        Args:
          side: the pieces come from the other end of the text.
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
    """Where words begin, or None if the tokenizer does not take words for themselves."""
    trial = _Trial(tokenizer)
    for boundary in (_AT_WHITE_SPACE, _AT_SPACE):
        if trial.divides(boundary, _SPACED):
            stops = filter(trial.divides_at_stop, _STOPS)
            return re.compile("|".join([boundary, *map(_at_stop, stops)]))
    return None


def _at_stop(stop: str) -> str:
    return rf"(?<=\w)(?={stop})"


def _spell_words(tokenizer: Tokenizer) -> str:
    """All of the vocabulary, with white space as it stands in texts."""
    words = tokenizer.get_vocab(with_added_tokens=True)
    is_byte_level = "ByteLevel" in list_decoders(tokenizer)
    spelt: dict[str, str | int | None] = {"\u2581": " "}
    if is_byte_level:
        spelt = {"\u0120": " ", "\u010a": "\n"}
    # What stands between them is white space, and none of that at which texts are divided.
    return "\x1f".join(words).translate(str.maketrans(spelt))


class _Trial:
    """Tries out whether divided texts have the tokens of whole ones."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._words = _spell_words(tokenizer)
        self._takes_spaces = any(
            token.rstrip for token in tokenizer.get_added_tokens_decoder().values()
        )

    def divides(self, boundary: str, samples: Iterable[str]) -> bool:
        # An added token may take the space after it, and a tokenizer that does not take
        # words for themselves may know whole phrases.
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
