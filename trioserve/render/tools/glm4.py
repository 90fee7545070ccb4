"""Calls of GLM 4.5 to 4.7: a name, and pairs of keys and values."""

from __future__ import annotations

from typing import Final

from .call_form import ArgumentsForm, CallForm
from .cursor import NotACall, Steps
from .scanner import ToolScanner
from .typed_values import TypedArguments

_CALL_END: Final = "</tool_call>"
_KEY: Final = "<arg_key>"
_KEY_END: Final = "</arg_key>"
_VALUE: Final = "<arg_value>"
_VALUE_END: Final = "</arg_value>"


class Glm4Scanner(ToolScanner):
    """Reads <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>."""

    markers = ("<tool_call>",)
    tags = ("<tool_call>", _CALL_END, _KEY, _KEY_END, _VALUE, _VALUE_END)
    template_parts = (_KEY, _VALUE)

    def read_calls(self, marker: str) -> Steps[None]:
        yield from self.skip_space()
        name = yield from self.read_name()
        yield from self.skip_space()
        tag = yield from self.expect(_KEY, _CALL_END)
        self.begin_call(name)
        arguments = TypedArguments(self.tools, name, self.writer.write_arguments)
        while tag == _KEY:
            yield from self._read_pair(arguments)
            yield from self.skip_space()
            tag = yield from self.expect(_KEY, _CALL_END)
        arguments.end()
        self.end_call()

    def _read_pair(self, arguments: TypedArguments) -> Steps[None]:
        key = yield from self.read_name()
        yield from self.expect(_KEY_END)
        yield from self.skip_space()
        yield from self.expect(_VALUE)
        self.held.clear()
        arguments.begin_value(key)
        if not (yield from self.read_until(arguments.write_value, _VALUE_END)):
            raise NotACall
        arguments.end_value()
        self.held.clear()

    @classmethod
    def choose_form(cls, template: str) -> CallForm:
        # GLM 4.7 writes no line ends.
        line_end = "" if f"{_KEY_END}{_VALUE}" in template else "\n"
        between = f"{_KEY_END}{line_end}{_VALUE}"
        return CallForm(
            before="<tool_call>",
            between=line_end,
            after=_CALL_END,
            separator=line_end,
            arguments=ArgumentsForm(
                before=_KEY,
                between=between,
                after=f"{_VALUE_END}{line_end}",
                text_between=between,
                text_end=_VALUE_END,
            ),
        )
