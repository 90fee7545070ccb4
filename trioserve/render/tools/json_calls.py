"""Calls that are JSON objects: {"name": "get_weather", "arguments": {"city": "Rome"}}."""

from __future__ import annotations

from collections.abc import Callable
import json
from typing import Any, Final, NoReturn

from .cursor import NotACall, Steps
from .scanner import ToolScanner

# Llama's models write `parameters`.
_ARGUMENTS: Final = ("arguments", "parameters")
# Models add these with values that are known already.
_LABELS: Final = ("id", "type")

# The limit of arguments in the history of a chat (text/tool_history.py).
_MAX_ARGUMENTS: Final = 262_144
_MAX_LABEL: Final = 1024


class JsonCallScanner(ToolScanner):
    """Reads calls that are JSON objects, for families whose marker stands before them."""

    def read_call(self) -> Steps[None]:
        """Read one object.

        Arguments pass on as they come if the name stands before them. A text with keys
        that a call does not have is not a call.

        Raises:
          NotACall: it is not a call.
        """
        yield from self.expect("{")
        name, early, has_begun = "", "", False
        separator = ","
        while separator == ",":
            key = yield from self._read_key()
            if key == "name" and not name:
                name = yield from self._read_function_name()
            elif key in _ARGUMENTS and not has_begun and not early:
                if name and (yield from self.find("{")):
                    has_begun = True
                    yield from self.pass_call(name)
                else:
                    early = yield from self._read_arguments()
            elif key in _LABELS:
                yield from self._read_string()
            else:
                raise NotACall
            yield from self.skip_space()
            separator = yield from self.expect(",", "}")
        if not name:
            raise NotACall
        if not has_begun:
            self.begin_call(name)
            self.writer.write_arguments(early or "{}")
            self.end_call()
        self.held.clear()

    def read_call_list(self) -> Steps[None]:
        """Read a list of objects.

        Raises:
          NotACall: it is not a list of at least one call.
        """
        yield from self.expect("[")
        yield from self.read_rest_of_list()

    def read_rest_of_list(self) -> Steps[None]:
        """Read a list from its first object on; see read_call_list."""
        separator = ","
        while separator == ",":
            yield from self.skip_space()
            yield from self.read_call()
            yield from self.skip_space()
            separator = yield from self.expect(",", "]")

    def read_section(
        self, read_one: Callable[[], Steps[None]], begin: str, end: str, end_all: str
    ) -> Steps[None]:
        """Read calls that have two tags each, up to the tag that ends all of them.

        Args:
          read_one: reads a call between its tags.
          begin, end: the tags of a call.
          end_all: the tag behind the last call.

        Raises:
          NotACall: something else stands there.
        """
        yield from self.skip_space()
        tag = yield from self.expect(begin)
        while tag == begin:
            yield from read_one()
            yield from self.skip_space()
            yield from self.expect(end)
            self.held.clear()
            yield from self.skip_space()
            tag = yield from self.expect(begin, end_all)

    def pass_call(self, name: str, header: str = "") -> Steps[None]:
        """Begin a call, and pass its arguments on, up to their end.

        Raises:
          NotACall: they are not a JSON object, or do not end.
        """
        if not (yield from self.find("{")):
            raise NotACall
        self.begin_call(name, header)
        yield from self.read_json(self.writer.write_arguments)
        self.end_call()

    def _read_key(self) -> Steps[str]:
        yield from self.skip_space()
        key = yield from self._read_string()
        yield from self.skip_space()
        yield from self.expect(":")
        yield from self.skip_space()
        return key

    def _read_function_name(self) -> Steps[str]:
        name = yield from self._read_string()
        # A lone half of a character could not be written into the answer.
        if not name or not name.isprintable() or not self.accepts(name):
            raise NotACall
        return name

    def _read_arguments(self) -> Steps[str]:
        """Take arguments as a whole: an object, its text in a string, or null."""
        if (yield from self.accept("null")):
            return "{}"
        if (yield from self.find('"')):
            return _check_object((yield from self._read_string(_MAX_ARGUMENTS)))
        if not (yield from self.find("{")):
            raise NotACall
        return (yield from self.hold_json(_MAX_ARGUMENTS))

    def _read_string(self, max_characters: int = _MAX_LABEL) -> Steps[str]:
        if not (yield from self.find('"')):
            raise NotACall
        return str(json.loads((yield from self.hold_json(max_characters))))


def _check_object(text: str) -> str:
    """Return a JSON object that was written in a string.

    Raises:
      NotACall: it is none.
    """
    try:
        text.encode()
        decoded: Any = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise NotACall from None
    if not isinstance(decoded, dict):
        raise NotACall
    return text.strip()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
