"""Calls of FunctionGemma and Gemma 4: objects whose keys have no quotes, and texts a tag."""

from __future__ import annotations

from typing import ClassVar, Final

from .cursor import NotACall, Steps
from .scanner import ToolScanner
from .typed_values import make_scalar, quote

# Each level takes several frames of the interpreter.
_MAX_DEPTH: Final = 32


class _GemmaScanner(ToolScanner):
    """Reads call:name{key:value} between two tags.

    Attributes:
      closing_tag: the tag behind a call.
      delimiter: the tag on both sides of a text.
    """

    closing_tag: ClassVar[str]
    delimiter: ClassVar[str]

    def read_calls(self, marker: str) -> Steps[None]:
        yield from self.expect("call:")
        name = yield from self.read_name()
        yield from self.expect("{")
        self.begin_call(name)
        yield from self._read_object(1)
        self.end_call()
        yield from self.accept(self.closing_tag)

    def _read_object(self, depth: int) -> Steps[None]:
        yield from self._read_items(depth, closing="}", has_keys=True)

    def _read_items(self, depth: int, *, closing: str, has_keys: bool) -> Steps[None]:
        """Read the items of an object or a list, from behind its opening bracket."""
        if depth > _MAX_DEPTH:
            raise NotACall
        write = self.writer.write_arguments
        write("{" if has_keys else "[")
        yield from self.skip_space()
        separator = yield from self.accept(closing)
        while separator != closing:
            if has_keys:
                yield from self._read_key()
            yield from self._read_value(depth)
            yield from self.skip_space()
            separator = yield from self.expect(",", closing)
            self.held.clear()
            if separator == ",":
                write(", ")
                yield from self.skip_space()
        write(closing)

    def _read_key(self) -> Steps[None]:
        # Keys of nested objects may be texts.
        has_quote = yield from self.accept(self.delimiter)
        key = yield from self.read_name()
        if has_quote:
            yield from self.expect(self.delimiter)
        yield from self.expect(":")
        yield from self.skip_space()
        self.writer.write_arguments(f"{quote(key)}: ")

    def _read_value(self, depth: int) -> Steps[None]:
        opening = yield from self.accept(self.delimiter, "{", "[")
        if opening == "{":
            yield from self._read_object(depth + 1)
        elif opening == "[":
            yield from self._read_items(depth + 1, closing="]", has_keys=False)
        elif opening:
            yield from self._read_text()
        else:
            self.writer.write_arguments(make_scalar((yield from self.read_name())))

    def _read_text(self) -> Steps[None]:
        write = self.writer.write_arguments
        write('"')
        found = yield from self.read_until(
            lambda text: write(quote(text)[1:-1]), self.delimiter
        )
        if not found:
            raise NotACall
        write('"')


class FunctionGemmaScanner(_GemmaScanner):
    """Reads <start_function_call>call:name{key:<escape>text<escape>}<end_function_call>."""

    markers = ("<start_function_call>",)
    closing_tag = "<end_function_call>"
    delimiter = "<escape>"
    tags = (*markers, closing_tag, delimiter)
    template_parts = markers


class Gemma4Scanner(_GemmaScanner):
    """Reads <|tool_call>call:name{key:<|"|>text<|"|>}<tool_call|>."""

    markers = ("<|tool_call>",)
    closing_tag = "<tool_call|>"
    delimiter = '<|"|>'
    tags = (*markers, closing_tag, delimiter)
    template_parts = markers
