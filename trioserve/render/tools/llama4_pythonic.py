"""Calls of Llama 4 and of Llama 3.2's small models as a list of calls in Python.

No tag tells a call from an answer that happens to be such a list. So the list must stand at
the beginning of the answer, and name the client's tools.
"""

from __future__ import annotations

from .pythonic_calls import PythonicCallScanner


class Llama4PythonicScanner(PythonicCallScanner):
    """Reads [name(key="text")], perhaps between two tags."""

    markers = ("<|python_start|>",)
    closing_tag = "<|python_end|>"
    tags = (*markers, closing_tag)
    template_parts = ("[func_name1(params_name1=params_value1",)
    opening = "["

    def accepts(self, name: str) -> bool:
        return name in self.tools
