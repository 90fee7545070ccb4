"""Calls of Granite 3, Jamba and Nemotron Nano 2: a list of objects behind a tag.

Granite 4 writes calls as Hermes does, and Nemotron 3 as Qwen3-Coder does.
"""

from __future__ import annotations

from typing import ClassVar

from .call_form import CallForm, make_object_form
from .cursor import Steps
from .json_calls import JsonCallScanner


class _TaggedListScanner(JsonCallScanner):
    """Reads a list.

    Attributes:
      closing_tag: the tag behind it, which models may leave out; empty if there is none.
    """

    closing_tag: ClassVar[str] = ""

    def read_calls(self, marker: str) -> Steps[None]:
        yield from self.skip_space()
        yield from self.read_call_list()
        if self.closing_tag:
            yield from self.skip_space()
            yield from self.accept(self.closing_tag)


class GraniteScanner(_TaggedListScanner):
    """Reads <|tool_call|>[{"name": ..., "arguments": {...}}]."""

    markers = ("<|tool_call|>", "<tool_call>")
    tags = markers
    template_parts = ("<|tool_call|>",)

    @classmethod
    def choose_form(cls, template: str) -> CallForm:
        return make_object_form(first="<|tool_call|>[", separator=", ", last="]")


class JambaScanner(_TaggedListScanner):
    """Reads <tool_calls>[{"name": ..., "arguments": {...}}]</tool_calls>."""

    markers = ("<tool_calls>",)
    closing_tag = "</tool_calls>"
    tags = (*markers, closing_tag)
    template_parts = markers

    @classmethod
    def choose_form(cls, template: str) -> CallForm:
        return make_object_form(
            first="<tool_calls>[\n", separator=",\n", last="\n]</tool_calls>"
        )


class NemotronV2Scanner(_TaggedListScanner):
    """Reads <TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>."""

    markers = ("<TOOLCALL>",)
    closing_tag = "</TOOLCALL>"
    tags = (*markers, closing_tag)
    template_parts = markers

    @classmethod
    def choose_form(cls, template: str) -> CallForm:
        return make_object_form(
            first="<TOOLCALL>[", separator=", ", last="]</TOOLCALL>"
        )
