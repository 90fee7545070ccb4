"""Follows one JSON value that comes in pieces (RFC 8259)."""

from __future__ import annotations

from collections.abc import Callable
import re
from typing import Final

# Deeper arguments could not be sent back in the history of a chat (types/nesting.py).
_MAX_DEPTH: Final = 64

# The part of a string that needs no look at its characters.
_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]*')
_SPACE: Final = " \t\n\r"
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_ESCAPED: Final = frozenset('"\\/bfnrt')
_LITERALS: Final = {"t": "rue", "f": "alse", "n": "ull"}
_CLOSING: Final = {"{": "}", "[": "]"}

# The part of a number that has been read -> kinds of the next character -> the next part.
# Digits other than 0 are of the kind 1.
_NUMBERS: Final[dict[str, dict[str, str]]] = {
    "minus": {"0": "zero", "1": "integer"},
    "zero": {".": "point", "e": "exponent"},
    "integer": {"0": "integer", "1": "integer", ".": "point", "e": "exponent"},
    "point": {"0": "fraction", "1": "fraction"},
    "fraction": {"0": "fraction", "1": "fraction", "e": "exponent"},
    "exponent": {"0": "power", "1": "power", "-": "sign", "+": "sign"},
    "sign": {"0": "power", "1": "power"},
    "power": {"0": "power", "1": "power"},
}
_WHOLE_NUMBERS: Final = frozenset({"zero", "integer", "fraction", "power"})
_KINDS: Final = {**dict.fromkeys("123456789", "1"), "E": "e"}


class JsonReader:
    """Reads one value, character by character.

    Control characters in strings, which JSON forbids and models write, are escaped.

    Attributes:
      is_done: the value has ended. A number that is not in a list or an object only ends
        at the whitespace behind it.
      is_broken: the next character cannot continue the value.
    """

    __slots__ = (
        "_closings",
        "_expected",
        "_in_string",
        "_is_key",
        "_number",
        "_num_hex",
        "_step",
        "is_broken",
        "is_done",
    )

    def __init__(self) -> None:
        self.is_done = False
        self.is_broken = False
        # The closing brackets of the open lists and objects.
        self._closings: list[str] = []
        self._in_string = False
        self._is_key = False
        self._num_hex = 0
        self._expected = ""
        self._number = ""
        # Takes the next character; returns whether it may stand there. It is a function
        # and not a method of this reader, which would refer to itself.
        self._step: Callable[[JsonReader, str], bool] = JsonReader._begin_value

    @property
    def is_complete(self) -> bool:
        """True if the value may end here."""
        return self.is_done or (
            self._step is JsonReader._go_on_number
            and self._number in _WHOLE_NUMBERS
            and not self._closings
        )

    def read(self, text: str, begin: int, stop: int) -> tuple[str, int]:
        """Read on until the end of the value, or of the text.

        Args:
          begin, stop: the part of `text` that is read, as offsets.

        Returns:
          The part of the value that was read, and the offset behind it.
        """
        parts = []
        copied = at = begin
        while at < stop and not self.is_done:
            if self._in_string:
                at = _end_of_plain(text, at, stop)
                if at == stop:
                    break
            character = text[at]
            if self._in_string and character < " ":
                parts += [text[copied:at], f"\\u{ord(character):04x}"]
                copied = at + 1
            elif not self._step(self, character):
                self.is_broken = True
                break
            at += 1
        parts.append(text[copied:at])
        return "".join(parts), at

    def _begin_value(self, character: str) -> bool:
        if character in _SPACE:
            return True
        if character == '"':
            self._begin_string(is_key=False)
        elif character in _CLOSING:
            return self._open(character)
        elif character in _LITERALS:
            self._expected = _LITERALS[character]
            self._step = JsonReader._go_on_literal
        else:
            return self._begin_number(character)
        return True

    def _open(self, character: str) -> bool:
        self._closings.append(_CLOSING[character])
        is_object = character == "{"
        self._step = JsonReader._first_key if is_object else JsonReader._first_item
        return len(self._closings) <= _MAX_DEPTH

    def _first_key(self, character: str) -> bool:
        return self._next_key(character) or self._close(character)

    def _next_key(self, character: str) -> bool:
        if character == '"':
            self._begin_string(is_key=True)
            return True
        return character in _SPACE

    def _behind_key(self, character: str) -> bool:
        if character == ":":
            self._step = JsonReader._begin_value
            return True
        return character in _SPACE

    def _first_item(self, character: str) -> bool:
        return self._close(character) or self._begin_value(character)

    def _behind_value(self, character: str) -> bool:
        if character == ",":
            in_object = self._closings[-1] == "}"
            self._step = JsonReader._next_key if in_object else JsonReader._begin_value
            return True
        return character in _SPACE or self._close(character)

    def _close(self, character: str) -> bool:
        if character != self._closings[-1]:
            return False
        self._closings.pop()
        self._end_value()
        return True

    def _end_value(self) -> None:
        self._step = JsonReader._behind_value
        self.is_done = not self._closings

    def _begin_string(self, *, is_key: bool) -> None:
        self._is_key = is_key
        self._return_to_string()

    def _return_to_string(self) -> None:
        self._in_string = True
        self._step = JsonReader._go_on_string

    def _go_on_string(self, character: str) -> bool:
        self._in_string = False
        if character == "\\":
            self._step = JsonReader._escape
        elif self._is_key:
            self._step = JsonReader._behind_key
        else:
            self._end_value()
        return True

    def _escape(self, character: str) -> bool:
        if character == "u":
            self._num_hex = 4
            self._step = JsonReader._go_on_hex
            return True
        self._return_to_string()
        return character in _ESCAPED

    def _go_on_hex(self, character: str) -> bool:
        self._num_hex -= 1
        if self._num_hex == 0:
            self._return_to_string()
        return character in _HEX

    def _go_on_literal(self, character: str) -> bool:
        is_right = character == self._expected[0]
        self._expected = self._expected[1:]
        if not self._expected:
            self._end_value()
        return is_right

    def _begin_number(self, character: str) -> bool:
        self._number = "minus"
        self._step = JsonReader._go_on_number
        return character == "-" or self._extend_number(character)

    def _go_on_number(self, character: str) -> bool:
        if self._extend_number(character):
            return True
        if self._number not in _WHOLE_NUMBERS:
            return False
        self._end_value()
        if self.is_done:
            return character in _SPACE
        return self._behind_value(character)

    def _extend_number(self, character: str) -> bool:
        kind = _KINDS.get(character, character)
        part = _NUMBERS[self._number].get(kind)
        if part is None:
            return False
        self._number = part
        return True


def _end_of_plain(text: str, begin: int, stop: int) -> int:
    found = _PLAIN.match(text, begin, stop)
    assert found is not None, "the pattern matches the empty text"
    return found.end()
