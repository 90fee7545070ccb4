"""Calls as Python writes them: [name(key="text", other=[1, True, {"a": None}]), ...]."""

from __future__ import annotations

from string import hexdigits
from typing import ClassVar, Final

from .call_form import ArgumentsForm, CallForm
from .cursor import NotACall, Steps
from .nested_values import NestedValueScanner
from .typed_values import quote

# Python's escapes in texts that JSON does not have, or that have another meaning there.
_ESCAPES: Final = {
    **{"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""},
    **{"\\": "\\", "'": "'", '"': '"'},
}


class PythonicCallScanner(NestedValueScanner):
    """Reads a list of calls, and the tag behind it, which models may leave out.

    Attributes:
      closing_tag: this tag.
    """

    closing_tag: ClassVar[str]
    quotes = ("'", '"')
    escape = "\\"

    def read_calls(self, marker: str) -> Steps[None]:
        yield from self.skip_space()
        yield from self.expect("[")
        yield from self.read_list()
        yield from self.skip_space()
        yield from self.accept(self.closing_tag)

    def read_list(self) -> Steps[None]:
        """Read calls from behind the bracket that begins the list.

        Raises:
          NotACall: something else stands there.
        """
        separator = ","
        while separator != "]":
            yield from self.skip_space()
            yield from self._read_call()
            yield from self.skip_space()
            separator = yield from self.expect(",", "]")

    def _read_call(self) -> Steps[None]:
        name = yield from self.read_name()
        yield from self.expect("(")
        if not self.accepts(name):
            raise NotACall
        self.begin_call(name)
        yield from self.read_items(")")
        self.end_call()

    def read_key(self, closing: str) -> Steps[None]:
        if closing == ")":
            key = yield from self.read_name()
            self.writer.write_arguments(quote(key))
        else:
            yield from self.read_quoted((yield from self.expect(*self.quotes)))
        yield from self.skip_space()
        yield from self.expect("=" if closing == ")" else ":")
        yield from self.skip_space()
        self.writer.write_arguments(": ")

    def make_word(self, word: str) -> str:
        scalar = super().make_word(word)
        # A bare word is a variable, and not a text.
        if scalar.startswith('"'):
            raise NotACall
        return scalar

    def read_escape(self) -> Steps[None]:
        write = self.writer.write_arguments
        escape = yield from self.accept(*_ESCAPES, "u")
        if escape == "u":
            digits = ""
            for _ in range(4):
                digits += yield from self.expect(*hexdigits)
            write(f"\\u{digits}")
        elif escape:
            write(quote(_ESCAPES[escape])[1:-1])
        elif not self.is_short:
            # Python leaves a backslash before any other character as it is.
            write("\\\\")

    @classmethod
    def choose_form(cls, template: str) -> CallForm:
        marker = "" if cls.opening else cls.markers[0]
        return CallForm(
            first=f"{marker}[",
            before="",
            between="(",
            after=")",
            separator=", ",
            last=f"]{cls.closing_tag if marker else ''}",
            # JSON is Python but for its constants, which these scanners read, too.
            arguments=ArgumentsForm(before="", between="=", separator=", "),
        )
