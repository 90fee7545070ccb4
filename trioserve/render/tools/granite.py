"""Calls of Granite 3: a list behind a tag. Granite 4 writes calls as Hermes does."""

from __future__ import annotations

from .call_form import CallForm, make_object_form
from .cursor import Steps
from .json_calls import JsonCallScanner


class GraniteScanner(JsonCallScanner):
    """Reads <|tool_call|>[{"name": ..., "arguments": {...}}]."""

    markers = ("<|tool_call|>", "<tool_call>")
    tags = markers
    template_parts = ("<|tool_call|>",)

    def read_calls(self, marker: str) -> Steps[None]:
        yield from self.skip_space()
        yield from self.read_call_list()

    @classmethod
    def choose_form(cls, template: str) -> CallForm:
        return make_object_form(first="<|tool_call|>[", separator=", ", last="]")
