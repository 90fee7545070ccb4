"""Calls of Qwen3-Coder: tags with the names of the function and of its parameters."""

from __future__ import annotations

from typing import Final

from .call_form import ArgumentsForm, CallForm
from .cursor import NotACall, Steps
from .scanner import ToolScanner
from .typed_values import TypedArguments

_FUNCTION: Final = "<function="
_PARAMETER: Final = "<parameter="
_PARAMETER_END: Final = "</parameter>"
_FUNCTION_END: Final = "</function>"
_CALL_END: Final = "</tool_call>"


class Qwen3CoderScanner(ToolScanner):
    """Reads <tool_call><function=name><parameter=key>value</parameter></function></tool_call>.

    A line end on each side of a value belongs to the tags. Models sometimes leave out the
    outer tag; then the name must be the name of a tool.
    """

    markers = ("<tool_call>", _FUNCTION)
    tags = ("<tool_call>", _CALL_END)
    template_parts = (_FUNCTION, _PARAMETER)

    def read_calls(self, marker: str) -> Steps[None]:
        has_outer_tag = marker != _FUNCTION
        if has_outer_tag:
            yield from self.skip_space()
            yield from self.expect(_FUNCTION)
        name = yield from self.read_name()
        yield from self.expect(">")
        if not (has_outer_tag or name in self.tools):
            raise NotACall
        self.begin_call(name)
        arguments = TypedArguments(self.tools, name, self.writer.write_arguments)
        end = yield from self._read_parameters(arguments)
        arguments.end()
        self.end_call()
        if end == _FUNCTION_END:
            yield from self.skip_space()
            yield from self.accept(_CALL_END)

    def _read_parameters(self, arguments: TypedArguments) -> Steps[str]:
        """Read all parameters, and return the tag behind them."""
        while True:
            yield from self.skip_space()
            tag = yield from self.expect(_PARAMETER, _FUNCTION_END, _CALL_END)
            if tag != _PARAMETER:
                return tag
            parameter = yield from self.read_name()
            yield from self.expect(">")
            yield from self.accept("\n")
            self.held.clear()
            arguments.begin_value(parameter)
            end = yield from self.read_until(
                arguments.write_value, f"\n{_PARAMETER_END}", _PARAMETER_END
            )
            if not end:
                raise NotACall
            arguments.end_value()
            self.held.clear()

    @classmethod
    def choose_form(cls, template: str) -> CallForm:
        return CallForm(
            before=f"<tool_call>\n{_FUNCTION}",
            between=">\n",
            after=f"{_FUNCTION_END}\n{_CALL_END}",
            separator="\n",
            arguments=ArgumentsForm(
                before=_PARAMETER,
                between=">\n",
                after=f"\n{_PARAMETER_END}\n",
                text_between=">\n",
                text_end=_PARAMETER_END,
            ),
        )
