"""Calls of DeepSeek V3 and R1, and of V3.1, which leaves the type and the fence out."""

from __future__ import annotations

from .call_form import CallForm
from .cursor import Steps
from .json_calls import JsonCallScanner

_BEGIN = "<｜tool▁call▁begin｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_END = "<｜tool▁call▁end｜>"
_ALL_BEGIN = "<｜tool▁calls▁begin｜>"
_ALL_END = "<｜tool▁calls▁end｜>"


class DeepSeekV3Scanner(JsonCallScanner):
    """Reads a section of calls, each between two tags.

    V3:   function<｜tool▁sep｜>name, and the arguments in a fence of Markdown
    V3.1: name<｜tool▁sep｜>{...}
    """

    markers = (_ALL_BEGIN,)
    tags = (_ALL_BEGIN, _BEGIN, _SEPARATOR, _END, _ALL_END)
    template_parts = (_ALL_BEGIN, _SEPARATOR)

    def read_calls(self, marker: str) -> Steps[None]:
        yield from self.read_section(self._read_one, _BEGIN, _END, _ALL_END)

    def _read_one(self) -> Steps[None]:
        name = yield from self.read_name()
        yield from self.expect(_SEPARATOR)
        yield from self.skip_space()
        has_fence = not (yield from self.find("{"))
        if has_fence:
            name = yield from self.read_name()
            yield from self.skip_space()
            yield from self.expect("```json")
            yield from self.skip_space()
        yield from self.pass_call(name)
        if has_fence:
            yield from self.skip_space()
            yield from self.expect("```")

    @classmethod
    def choose_form(cls, template: str) -> CallForm:
        has_fence = "```json" in template
        return CallForm(
            first=_ALL_BEGIN,
            before=f"{_BEGIN}function{_SEPARATOR}" if has_fence else _BEGIN,
            between="\n```json\n" if has_fence else _SEPARATOR,
            after=f"\n```{_END}" if has_fence else _END,
            separator="\n" if has_fence else "",
            last=_ALL_END,
        )
