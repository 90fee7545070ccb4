"""A cursor over text that comes in pieces, for scanners of tool calls.

Its steps are generators. They yield where the text ends, and go on with the next piece. So no
step is repeated, and the format of a family is written as if the whole text were there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
import re
from typing import Final, TypeVar

from .json_reader import JsonReader

T = TypeVar("T")

# Each `yield` waits for more text.
Steps = Generator[None, None, T]

# OpenAI allows 64 letters, digits, underscores and hyphens. Servers of tools (MCP) are less
# strict.
_MAX_NAME_CHARACTERS: Final = 256
_NAME: Final = re.compile(r"[\w.\-/]*")
_SPACE: Final = re.compile(r"\s*")


class NotACall(Exception):
    """The text does not go on as a call would."""


class TextCursor:
    """Takes text step by step.

    The next character of each step is the first one that no step has taken. A step that
    fails leaves the character at which it fails.

    Attributes:
      held: text that was taken, and that stays text if it turns out not to be a call.
      is_cut: the text was cut off, so the model has not ended it. The beginning of a tag
        at its end is taken, too, and is held.
      is_short: a step needed more text than there is.
    """

    def __init__(self) -> None:
        self.held: list[str] = []
        self.is_cut = False
        self.is_short = False
        self._seen = ""
        # The offset in _seen of the next character.
        self._at = 0
        self._ended = False

    def add(self, text: str) -> None:
        """Add the next piece of the text."""
        self._seen = self._seen[self._at :] + text
        self._at = 0

    def end(self, *, is_cut: bool = False) -> None:
        """Say that no more text follows."""
        self._ended = True
        self.is_cut = is_cut

    def find(self, *texts: str) -> Steps[str]:
        """Return the one of `texts` that comes next; else the empty text.

        None of the texts is the beginning of another one.
        """
        longest = max(map(len, texts))
        while True:
            rest = self._seen[self._at : self._at + longest]
            for text in texts:
                if rest.startswith(text):
                    return text
            if not any(text.startswith(rest) for text in texts):
                return ""
            if self._needs_more():
                return ""
            yield

    def accept(self, *texts: str) -> Steps[str]:
        """Take one of the texts if the text goes on with it; see find."""
        found = yield from self.find(*texts)
        self._take(self._at + len(found))
        return found

    def expect(self, *texts: str) -> Steps[str]:
        """Take one of the texts.

        Raises:
          NotACall: the text goes on with none of them.
        """
        found = yield from self.accept(*texts)
        if not found:
            raise NotACall
        return found

    def skip_space(self) -> Steps[None]:
        """Take all whitespace."""
        while True:
            self._take(_match_end(_SPACE, self._seen, self._at, len(self._seen)))
            if self._at < len(self._seen) or self._needs_more():
                return
            yield

    def read_name(self) -> Steps[str]:
        """Take a name.

        Raises:
          NotACall: there is none, it is too long, or nothing stands behind it.
        """
        name = ""
        # The limit is exact, so that it does not depend on the pieces.
        while len(name) < _MAX_NAME_CHARACTERS:
            stop = self._at + _MAX_NAME_CHARACTERS - len(name)
            name += self._take(_match_end(_NAME, self._seen, self._at, stop))
            if name and self._at < len(self._seen):
                return name
            if self._at < len(self._seen) or self._needs_more():
                break
            yield
        raise NotACall

    def read_json(self, write: Callable[[str], None]) -> Steps[None]:
        """Take a JSON value of a call that has begun, and pass its text on as it comes.

        Raises:
          NotACall: it is not JSON, or it does not end.
        """
        reader = JsonReader()
        while True:
            text, self._at = reader.read(self._seen, self._at, len(self._seen))
            write(text)
            if reader.is_done:
                return
            if reader.is_broken or self._needs_more():
                raise NotACall
            yield

    def hold_json(self, max_characters: int) -> Steps[str]:
        """Take a JSON value of a possible call.

        Raises:
          NotACall: it is not JSON, is too long, or does not end.
        """
        reader = JsonReader()
        parts: list[str] = []
        num_left = max_characters
        while True:
            stop = min(len(self._seen), self._at + num_left)
            text, end = reader.read(self._seen, self._at, stop)
            parts.append(text)
            num_left -= end - self._at
            self._take(end)
            if reader.is_done:
                return "".join(parts)
            if reader.is_broken or num_left == 0 or self._needs_more():
                raise NotACall
            yield

    def read_until(self, write: Callable[[str], None], *ends: str) -> Steps[str]:
        """Pass the text on as it comes, up to the end that begins first, which is taken.

        Returns:
          The end; the empty text if the text ends without one.
        """
        while True:
            found = [
                (begin, end)
                for end in ends
                if (begin := self._seen.find(end, self._at)) >= 0
            ]
            if found:
                begin, end = min(found)
                write(self._seen[self._at : begin])
                self._at = begin
                return self._take(begin + len(end))
            begin = len(self._seen)
            if self.is_cut or not self._ended:
                begin = self._find_beginning(ends)
            write(self._seen[self._at : begin])
            self._at = begin
            if self._needs_more():
                return ""
            yield

    def _needs_more(self) -> bool:
        """Note that a step needs more text; returns whether none follows."""
        if self._ended:
            self.is_short = True
            if self.is_cut:
                self._take(len(self._seen))
        return self._ended

    def _take(self, end: int) -> str:
        taken = self._seen[self._at : end]
        self.held.append(taken)
        self._at = end
        return taken

    def _find_beginning(self, ends: tuple[str, ...]) -> int:
        """Return the offset of the longest rest of the text that begins one of the ends."""
        begin = len(self._seen)
        for end in ends:
            at = self._seen.find(end[0], max(self._at, len(self._seen) - len(end) + 1))
            while 0 <= at < begin:
                if end.startswith(self._seen[at:]):
                    begin = at
                at = self._seen.find(end[0], at + 1)
        return begin


def _match_end(pattern: re.Pattern[str], text: str, begin: int, stop: int) -> int:
    found = pattern.match(text, begin, stop)
    assert found is not None, "the pattern matches the empty text"
    return found.end()
