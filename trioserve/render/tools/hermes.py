"""Calls of Qwen 2.5, Qwen 3 and Hermes: an object between two tags."""

from __future__ import annotations

from .call_form import CallForm, make_object_form
from .cursor import Steps
from .json_calls import JsonCallScanner


class HermesScanner(JsonCallScanner):
    """Reads <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

    markers = ("<tool_call>",)
    tags = ("<tool_call>", "</tool_call>")
    template_parts = ("<tool_call>", "arguments")

    def read_calls(self, marker: str) -> Steps[None]:
        yield from self.skip_space()
        yield from self.read_call()
        yield from self.skip_space()
        # Small models leave it out.
        yield from self.accept("</tool_call>")

    @classmethod
    def choose_form(cls, template: str) -> CallForm:
        return make_object_form(
            first="<tool_call>\n",
            separator="\n</tool_call>\n<tool_call>\n",
            last="\n</tool_call>",
        )
