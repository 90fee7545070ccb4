"""Values without quotes, which become JSON by the schema of their parameter.

A text is written as `Rome`, and not as "Rome". So the schema tells whether `5` is a number.
"""

from __future__ import annotations

from collections.abc import Callable
import json
from typing import Final

from .json_reader import JsonReader
from .tool_table import ToolTable

# Models write these as Python does.
_CONSTANTS: Final = {
    "true": "boolean",
    "false": "boolean",
    "null": "null",
    "none": "null",
}
_SPELT: Final = {"none": "null"}


class TypedArguments:
    """Writes the arguments of one call as a JSON object, value by value.

    Args:
      tools, name: the tools of the request, and the one that is called.
      write: takes the JSON text, as far as it is certain.
    """

    def __init__(
        self, tools: ToolTable, name: str, write: Callable[[str], None]
    ) -> None:
        self._tools = tools
        self._name = name
        self._write = write
        self._value: _TextValue | _JsonValue | None = None
        write("{")

    def begin_value(self, parameter: str, *, is_text: bool | None = None) -> None:
        """Begin the value of a parameter.

        Args:
          is_text: what the model itself says; None if it says nothing. A value that is not
            a text is one nevertheless if the schema allows texts alone.
        """
        separator = "" if self._value is None else ", "
        self._write(f"{separator}{quote(parameter)}: ")
        types = self._tools.find_types(self._name, parameter)
        if is_text is False and types != {"string"}:
            self._value = _JsonValue(self._write, types - {"string"})
        elif is_text or types <= {"string"}:
            self._value = _TextValue(self._write)
        else:
            self._value = _JsonValue(self._write, types)

    def write_value(self, text: str) -> None:
        """Take the next piece of the value."""
        assert self._value is not None, "a value has begun"
        self._value.push(text)

    def end_value(self) -> None:
        assert self._value is not None, "a value has begun"
        self._value.end()

    def end(self) -> None:
        self._write("}")


class _TextValue:
    """A text, which is written as it comes."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        write('"')

    def push(self, text: str) -> None:
        self._write(quote(text)[1:-1])

    def end(self) -> None:
        self._write('"')


class _JsonValue:
    """A value of another type, which is written when it is complete.

    If it is not JSON, it is written as a text.
    """

    def __init__(self, write: Callable[[str], None], types: frozenset[str]) -> None:
        self._write = write
        self._types = types
        self._pieces: list[str] = []
        # Followed piece by piece, because it may be long.
        self._reader = JsonReader()
        self._json: list[str] = []
        self._is_json = True

    def push(self, text: str) -> None:
        self._pieces.append(text)
        if self._is_json:
            written, end = self._reader.read(text, 0, len(text))
            self._json.append(written)
            self._is_json = not self._reader.is_broken and not text[end:].strip()

    def end(self) -> None:
        text = "".join(self._pieces)
        self._write(
            self._find_constant(text.strip()) or self._find_json() or quote(text)
        )

    def _find_constant(self, text: str) -> str:
        constant = text.lower() if len(text) < 6 else ""
        if _CONSTANTS.get(constant) not in self._types:
            return ""
        return _SPELT.get(constant, constant)

    def _find_json(self) -> str:
        if "string" in self._types or not (self._is_json and self._reader.is_complete):
            return ""
        return "".join(self._json).strip()


def make_scalar(text: str) -> str:
    """Return a word as JSON: a number, a constant or a text."""
    if text.lower() in _CONSTANTS:
        return _SPELT.get(text.lower(), text.lower())
    reader = JsonReader()
    reader.read(text, 0, len(text))
    return text if reader.is_complete and not reader.is_broken else quote(text)


def quote(text: str) -> str:
    """Return a text as JSON."""
    return json.dumps(text, ensure_ascii=False)
