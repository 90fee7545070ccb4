"""Calls of Granite 3: a list behind a tag. Granite 4 writes calls as Hermes does."""

from __future__ import annotations

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
