"""Calls of Llama 4 and of Llama 3.2's small models as a list of calls in Python.

No tag tells a call from an answer that happens to be such a list. So the list must stand at
the beginning of the answer, and name the client's tools.
"""

from __future__ import annotations

from string import hexdigits
from typing import Final

from .cursor import NotACall, Steps
from .scanner import ToolScanner
from .typed_values import make_scalar, quote

# Each level takes several frames of the interpreter.
_MAX_DEPTH: Final = 32

# Python's escapes in texts that JSON does not have, or that have another meaning there.
_ESCAPES: Final = {
    **{"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""},
    **{"\\": "\\", "'": "'", '"': '"'},
}


class Llama4PythonicScanner(ToolScanner):
    """Reads [name(key="text", other=[1, True, {"a": None}]), ...]."""

    markers = ("<|python_start|>",)
    tags = ("<|python_start|>", "<|python_end|>")
    template_parts = ("[func_name1(params_name1=params_value1",)

    def read_text(self) -> Steps[None]:
        yield from self.skip_space()
        if (yield from self.find("[")):
            yield from self.try_calls("")
        else:
            self.give_back()
        yield from super().read_text()

    def read_calls(self, marker: str) -> Steps[None]:
        yield from self.skip_space()
        separator = yield from self.expect("[")
        while separator != "]":
            yield from self.skip_space()
            yield from self._read_call()
            yield from self.skip_space()
            separator = yield from self.expect(",", "]")
        yield from self.skip_space()
        yield from self.accept("<|python_end|>")

    def _read_call(self) -> Steps[None]:
        name = yield from self.read_name()
        yield from self.expect("(")
        if name not in self.tools:
            raise NotACall
        self.begin_call(name)
        yield from self._read_items(0, "{", ")")
        self.end_call()

    def _read_items(self, depth: int, opening: str, closing: str) -> Steps[None]:
        """Read arguments, or the items of a list or a dictionary, and write them as JSON."""
        if depth > _MAX_DEPTH:
            raise NotACall
        write = self.writer.write_arguments
        write(opening)
        yield from self.skip_space()
        separator = yield from self.accept(closing)
        while separator != closing:
            yield from self._read_key(closing)
            yield from self._read_value(depth)
            yield from self.skip_space()
            separator = yield from self.expect(",", closing)
            self.held.clear()
            if separator == ",":
                write(", ")
                yield from self.skip_space()
        write("]" if closing == "]" else "}")

    def _read_key(self, closing: str) -> Steps[None]:
        if closing == ")":
            key = yield from self.read_name()
            self.writer.write_arguments(quote(key))
        elif closing == "}":
            yield from self._read_text((yield from self.expect("'", '"')))
        else:
            return
        yield from self.skip_space()
        yield from self.expect("=" if closing == ")" else ":")
        yield from self.skip_space()
        self.writer.write_arguments(": ")

    def _read_value(self, depth: int) -> Steps[None]:
        opening = yield from self.accept("'", '"', "[", "{")
        if opening == "[":
            yield from self._read_items(depth + 1, "[", "]")
        elif opening == "{":
            yield from self._read_items(depth + 1, "{", "}")
        elif opening:
            yield from self._read_text(opening)
        else:
            scalar = make_scalar((yield from self.read_name()))
            # A bare word is a variable, and not a text.
            if scalar.startswith('"'):
                raise NotACall
            self.writer.write_arguments(scalar)

    def _read_text(self, mark: str) -> Steps[None]:
        """Read a text up to the mark with which it began."""
        write = self.writer.write_arguments
        write('"')
        while True:
            end = yield from self.read_until(
                lambda text: write(quote(text)[1:-1]), mark, "\\"
            )
            if not end:
                raise NotACall
            if end == mark:
                write('"')
                return
            yield from self._read_escape()

    def _read_escape(self) -> Steps[None]:
        write = self.writer.write_arguments
        escape = yield from self.accept(*_ESCAPES, "u")
        if escape == "u":
            digits = ""
            for _ in range(4):
                digits += yield from self.expect(*hexdigits)
            write(f"\\u{digits}")
        elif escape:
            write(quote(_ESCAPES[escape])[1:-1])
        else:
            # Python leaves a backslash before any other character as it is.
            write("\\\\")
