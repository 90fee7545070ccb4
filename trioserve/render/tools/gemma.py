"""Calls of FunctionGemma and Gemma 4: objects whose keys have no quotes, and texts a tag."""

from __future__ import annotations

from typing import ClassVar

from .call_form import ArgumentsForm, CallForm
from .cursor import Steps
from .nested_values import NestedValueScanner
from .typed_values import quote


class _GemmaScanner(NestedValueScanner):
    """Reads call:name{key:value} between two tags.

    Attributes:
      closing_tag: the tag behind a call.
    """

    closing_tag: ClassVar[str]

    def read_calls(self, marker: str) -> Steps[None]:
        yield from self.expect("call:")
        name = yield from self.read_name()
        yield from self.expect("{")
        self.begin_call(name)
        yield from self.read_items("}")
        self.end_call()
        yield from self.accept(self.closing_tag)

    def read_key(self, closing: str) -> Steps[None]:
        # Keys of nested objects may be texts.
        mark = yield from self.accept(*self.quotes)
        key = yield from self.read_name()
        if mark:
            yield from self.expect(mark)
        yield from self.expect(":")
        yield from self.skip_space()
        self.writer.write_arguments(f"{quote(key)}: ")

    @classmethod
    def choose_form(cls, template: str) -> CallForm:
        return CallForm(
            before=f"{cls.markers[0]}call:",
            between="{",
            after=f"}}{cls.closing_tag}",
            arguments=ArgumentsForm(
                before="",
                between=":",
                separator=",",
                text_end=cls.quotes[0],
                nests=True,
            ),
        )


class FunctionGemmaScanner(_GemmaScanner):
    """Reads <start_function_call>call:name{key:<escape>text<escape>}<end_function_call>."""

    markers = ("<start_function_call>",)
    closing_tag = "<end_function_call>"
    quotes = ("<escape>",)
    tags = (*markers, closing_tag, *quotes)
    template_parts = markers


class Gemma4Scanner(_GemmaScanner):
    """Reads <|tool_call>call:name{key:<|"|>text<|"|>}<tool_call|>."""

    markers = ("<|tool_call>",)
    closing_tag = "<tool_call|>"
    quotes = ('<|"|>',)
    tags = (*markers, closing_tag, *quotes)
    template_parts = markers
