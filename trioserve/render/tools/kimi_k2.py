"""Calls of Kimi K2: a section of calls, each with its id before its arguments."""

from __future__ import annotations

from .call_form import CallForm
from .cursor import Steps
from .json_calls import JsonCallScanner

_BEGIN = "<|tool_call_begin|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_END = "<|tool_call_end|>"
_SECTION_BEGIN = "<|tool_calls_section_begin|>"
_SECTION_END = "<|tool_calls_section_end|>"


class KimiK2Scanner(JsonCallScanner):
    """Reads <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>.

    The template shows the model the ids of its earlier calls, and nothing else of their
    names. So the ids of calls are the model's own.
    """

    markers = (_SECTION_BEGIN,)
    tags = (_SECTION_BEGIN, _BEGIN, _ARGUMENTS, _END, _SECTION_END)
    template_parts = (_SECTION_BEGIN,)

    def read_calls(self, marker: str) -> Steps[None]:
        yield from self.read_section(self._read_one, _BEGIN, _END, _SECTION_END)

    def make_id(self, header: str) -> str:
        path, _, number = header.rpartition(":")
        # Forced calls all have the number 0 (choose_form), and clients need unique ids.
        if number == "0" and self.writer.num_calls:
            return f"{path}:{self.writer.num_calls}"
        return header

    def _read_one(self) -> Steps[None]:
        yield from self.skip_space()
        path = yield from self.read_name()
        yield from self.expect(":")
        number = yield from self.read_name()
        yield from self.skip_space()
        yield from self.expect(_ARGUMENTS)
        yield from self.skip_space()
        yield from self.pass_call(path.rpartition(".")[2], f"{path}:{number}")

    @classmethod
    def choose_form(cls, template: str) -> CallForm:
        return CallForm(
            first=_SECTION_BEGIN,
            before=f"{_BEGIN}functions.",
            # A grammar cannot count, so every call has the number of the first one.
            between=f":0{_ARGUMENTS}",
            after=_END,
            last=_SECTION_END,
        )
