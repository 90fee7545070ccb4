"""Calls of Mistral's models, in both of their forms.

Models up to Mistral Small 3.1 write a list of objects behind the tag, and later ones
(Mistral Small 3.2, Magistral, Devstral) the tag before the name of each call.
"""

from __future__ import annotations

import secrets
import string
from typing import Final

from .call_form import CallForm, make_object_form
from .cursor import Steps
from .json_calls import JsonCallScanner

_ID_CHARACTERS: Final = string.ascii_letters + string.digits


class MistralScanner(JsonCallScanner):
    """Reads [TOOL_CALLS][{"name": ..., "arguments": {...}}] and [TOOL_CALLS]name[ARGS]{...}."""

    markers = ("[TOOL_CALLS]",)
    tags = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
    template_parts = ("[TOOL_CALLS]",)

    def read_calls(self, marker: str) -> Steps[None]:
        yield from self.skip_space()
        if (yield from self.find("[")):
            yield from self.read_call_list()
            return
        name = yield from self.read_name()
        if (yield from self.accept("[CALL_ID]")):
            yield from self.read_name()
        yield from self.accept("[ARGS]")
        yield from self.skip_space()
        yield from self.pass_call(name)

    def make_id(self, header: str) -> str:
        # The templates take no other ids.
        return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))

    @classmethod
    def choose_form(cls, template: str) -> CallForm:
        if "[ARGS]" not in template:
            return make_object_form(first="[TOOL_CALLS][", separator=", ", last="]")
        return CallForm(before="[TOOL_CALLS]", between="[ARGS]")
