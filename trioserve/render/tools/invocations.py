"""Calls of MiniMax M2 and DeepSeek V3.2: tags with names of functions and parameters."""

from __future__ import annotations

from typing import ClassVar

from .call_form import ArgumentsForm, CallForm
from .cursor import NotACall, Steps
from .scanner import ToolScanner
from .typed_values import TypedArguments


class _InvocationScanner(ToolScanner):
    """Reads a section of calls, whose tags may have a mark before their names.

    Attributes:
      mark: this mark.
      closing_tag: the tag behind the last call.
    """

    mark: ClassVar[str] = ""
    closing_tag: ClassVar[str]
    # Behind the name of a parameter, before a value that is JSON, or a text.
    json_begin: ClassVar[str] = '">'
    text_begin: ClassVar[str] = '">'

    def read_calls(self, marker: str) -> Steps[None]:
        begin = f'<{self.mark}invoke name="'
        yield from self.skip_space()
        tag = yield from self.expect(begin)
        while tag == begin:
            yield from self._read_call()
            yield from self.skip_space()
            tag = yield from self.expect(begin, self.closing_tag)

    def _read_call(self) -> Steps[None]:
        name = yield from self.read_name()
        yield from self.expect('">')
        self.begin_call(name)
        arguments = TypedArguments(self.tools, name, self.writer.write_arguments)
        begin, end = f'<{self.mark}parameter name="', f"</{self.mark}invoke>"
        yield from self.skip_space()
        while (yield from self.expect(begin, end)) == begin:
            parameter = yield from self.read_name()
            is_text = yield from self.read_kind()
            self.held.clear()
            arguments.begin_value(parameter, is_text=is_text)
            closing = f"</{self.mark}parameter>"
            if not (yield from self.read_until(arguments.write_value, closing)):
                raise NotACall
            arguments.end_value()
            self.held.clear()
            yield from self.skip_space()
        arguments.end()
        self.end_call()

    def read_kind(self) -> Steps[bool | None]:
        """Take the end of a parameter's tag; returns whether it says that a text follows.

        None says that the tag does not tell.
        """
        yield from self.expect('">')
        return None

    @classmethod
    def choose_form(cls, template: str) -> CallForm:
        closing = f"</{cls.mark}parameter>"
        return CallForm(
            first=f"{cls.markers[0]}\n",
            before=f'<{cls.mark}invoke name="',
            between='">\n',
            after=f"</{cls.mark}invoke>\n",
            last=cls.closing_tag,
            arguments=ArgumentsForm(
                before=f'<{cls.mark}parameter name="',
                between=cls.json_begin,
                after=f"{closing}\n",
                text_between=cls.text_begin,
                text_end=closing,
            ),
        )


class MiniMaxM2Scanner(_InvocationScanner):
    """Reads <minimax:tool_call><invoke name="f"><parameter name="a">value</parameter> ..."""

    markers = ("<minimax:tool_call>",)
    closing_tag = "</minimax:tool_call>"
    tags = (*markers, closing_tag)
    template_parts = markers


class DeepSeekV32Scanner(_InvocationScanner):
    """Reads <｜DSML｜function_calls> with parameters that say whether they are texts.

    V3.2-Exp writes calls as V3.1 does.
    """

    mark = "｜DSML｜"
    markers = ("<｜DSML｜function_calls>",)
    closing_tag = "</｜DSML｜function_calls>"
    tags = (mark,)
    template_parts = (mark, "function_calls")
    json_begin = '" string="false">'
    text_begin = '" string="true">'

    def read_kind(self) -> Steps[bool | None]:
        begin = yield from self.expect(self.text_begin, self.json_begin)
        return begin == self.text_begin
