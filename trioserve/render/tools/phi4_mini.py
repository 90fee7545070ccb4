"""Calls of Phi-4-mini: a list behind a word, or between two tags."""

from __future__ import annotations

from .call_form import CallForm, make_object_form
from .cursor import Steps
from .json_calls import JsonCallScanner


class Phi4MiniScanner(JsonCallScanner):
    """Reads functools[{"name": ..., "arguments": {...}}], and <|tool_call|>[...]<|/tool_call|>."""

    markers = ("functools[", "<|tool_call|>")
    tags = ("<|tool_call|>", "<|/tool_call|>")
    template_parts = ("<|tool|>", "<|/tool|>")

    def read_calls(self, marker: str) -> Steps[None]:
        if marker == "functools[":
            yield from self.read_rest_of_list()
            return
        yield from self.skip_space()
        yield from self.read_call_list()
        yield from self.skip_space()
        yield from self.accept("<|/tool_call|>")

    @classmethod
    def choose_form(cls, template: str) -> CallForm:
        return make_object_form(first="functools[", separator=", ", last="]")
