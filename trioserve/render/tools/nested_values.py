"""Values that nest, in forms that are like JSON without being JSON."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Final

from .cursor import NotACall, Steps
from .scanner import ToolScanner
from .typed_values import make_scalar, quote

# Each level takes several frames of the interpreter.
MAX_DEPTH: Final = 32


class NestedValueScanner(ToolScanner):
    """Reads lists and objects, and writes them as JSON while they come.

    Attributes:
      quotes: texts with which a text in quotes begins, and ends.
      escape: begins an escape in such a text; empty if there are none.
    """

    quotes: ClassVar[tuple[str, ...]]
    escape: ClassVar[str] = ""

    @abstractmethod
    def read_key(self, closing: str) -> Steps[None]:
        """Read and write a key, and the text behind it up to the value.

        Args:
          closing: the bracket behind the last item; never the bracket of a list.
        """

    def read_escape(self) -> Steps[None]:
        """Read and write an escape in quotes, from behind its beginning."""
        raise NotImplementedError

    def read_quoted(self, mark: str) -> Steps[None]:
        """Read and write a text from behind the quote with which it begins."""
        write = self.writer.write_arguments
        ends = (mark, self.escape) if self.escape else (mark,)
        write('"')
        while True:
            end = yield from self.read_until(
                lambda text: write(quote(text)[1:-1]), *ends
            )
            if end == mark:
                break
            if not end:
                raise NotACall
            yield from self.read_escape()
        write('"')

    def make_word(self, word: str) -> str:
        """Return a word without quotes as JSON.

        Raises:
          NotACall: it is not a value.
        """
        return make_scalar(word)

    def read_items(self, closing: str, depth: int = 0) -> Steps[None]:
        """Read the items of an object or a list, from behind its opening bracket.

        Args:
          closing: "]" for a list; another text for an object, whose items have keys.

        Raises:
          NotACall: they end in another way, or nest too deeply.
        """
        if depth > MAX_DEPTH:
            raise NotACall
        write, is_list = self.writer.write_arguments, closing == "]"
        write("[" if is_list else "{")
        yield from self.skip_space()
        separator = yield from self.accept(closing)
        while separator != closing:
            if not is_list:
                yield from self.read_key(closing)
            yield from self._read_value(depth)
            yield from self.skip_space()
            separator = yield from self.expect(",", closing)
            self.held.clear()
            if separator == ",":
                write(", ")
                yield from self.skip_space()
        write("]" if is_list else "}")

    def _read_value(self, depth: int) -> Steps[None]:
        opening = yield from self.accept(*self.quotes, "{", "[")
        if opening == "{":
            yield from self.read_items("}", depth + 1)
        elif opening == "[":
            yield from self.read_items("]", depth + 1)
        elif opening:
            yield from self.read_quoted(opening)
        else:
            word = yield from self.read_name()
            if word[-1] in "eE" and (yield from self.accept("+")):
                word += "+" + (yield from self.read_name())
            self.writer.write_arguments(self.make_word(word))
