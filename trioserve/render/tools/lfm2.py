"""Calls of LFM2 and LFM2.5: a list between two tags, of calls in Python or of objects.

Source: https://docs.liquid.ai/lfm/key-concepts/tool-use
"""

from __future__ import annotations

from .cursor import Steps
from .json_calls import JsonCallScanner
from .pythonic_calls import PythonicCallScanner


class Lfm2Scanner(PythonicCallScanner, JsonCallScanner):
    """Reads <|tool_call_start|>[name(key="text")]<|tool_call_end|>.

    These models write [{"name": ..., "arguments": {...}}] if a prompt asks for JSON.
    """

    markers = ("<|tool_call_start|>",)
    closing_tag = "<|tool_call_end|>"
    tags = (*markers, closing_tag)
    # Templates of LFM2 show no calls.
    template_parts = ("List of tools: ",)
    template_tokens = tags

    def read_list(self) -> Steps[None]:
        yield from self.skip_space()
        if (yield from self.find("{")):
            yield from self.read_rest_of_list()
        else:
            yield from super().read_list()
