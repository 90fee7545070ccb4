"""Calls of Llama 3.1 to 3.3, and of Llama 4 in its JSON form: the answer is an object.

No tag tells a call from an answer that happens to be JSON. So the object must stand at the
beginning of the answer, and name one of the client's tools.
"""

from __future__ import annotations

from .call_form import CallForm, make_object_form
from .cursor import Steps
from .json_calls import JsonCallScanner


class Llama3JsonScanner(JsonCallScanner):
    """Reads {"name": ..., "parameters": {...}}, several of them with semicolons between."""

    markers = ("<|python_tag|>", "<|python_start|>")
    tags = ("<|python_tag|>", "<|python_start|>", "<|python_end|>")
    opening = "{"
    template_parts = ('"parameters": dictionary of argument name and its value',)

    def read_calls(self, marker: str) -> Steps[None]:
        goes_on = True
        while goes_on:
            yield from self.skip_space()
            yield from self.read_call()
            yield from self.skip_space()
            has_separator = yield from self.accept(";")
            goes_on = bool(has_separator or (yield from self.find("{")))
        yield from self.accept("<|python_end|>")

    def accepts(self, name: str) -> bool:
        return name in self.tools

    @classmethod
    def choose_form(cls, template: str) -> CallForm:
        return make_object_form(
            first="", separator="; ", last="", arguments="parameters"
        )
