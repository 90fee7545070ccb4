"""Calls, reasoning and text of gpt-oss, which come in messages with channels (harmony).

    <|channel|>analysis<|message|>I should look.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}
    <|start|>assistant<|channel|>final<|message|>It rains.

The prompt ends in <|start|>assistant, and the answer in <|call|> or <|return|>, which are
end-of-sequence tokens.

Source: https://github.com/openai/harmony/blob/main/docs/format.md
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .call_form import AnswerForm, CallForm
from .cursor import NotACall, Steps
from .json_calls import JsonCallScanner
from .tool_table import ToolTable

_START: Final = "<|start|>"
_CHANNEL: Final = "<|channel|>"
_CONSTRAIN: Final = "<|constrain|>"
_MESSAGE: Final = "<|message|>"
_END: Final = "<|end|>"
_CALL: Final = "<|call|>"
_RETURN: Final = "<|return|>"
_TO: Final = "to="

_THOUGHT: Final = (f"{_CHANNEL}analysis{_MESSAGE}", f"{_END}{_START}assistant")

# A header has a channel, a recipient and a type of content.
_MAX_HEADER_PARTS: Final = 8


class GptOssScanner(JsonCallScanner):
    """Reads messages: the channel analysis has the reasoning, calls name a function.

    Everything else is text, also the channel commentary, in which the model speaks to the
    user before it calls.
    """

    splits_reasoning = True
    answer_form = AnswerForm(before=f"{_CHANNEL}final{_MESSAGE}", thought=_THOUGHT)
    markers = (_CHANNEL, _START)
    tags = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, _END, _CALL, _RETURN)
    template_parts = (_CHANNEL, "<|message|>", "functions.")

    def __init__(self, tools: ToolTable, **options: bool) -> None:
        self._reasoning: list[str] = []
        # Whether the answer has text, and reasoning, to separate further ones from.
        self._has_text = False
        self._has_reasoning = False
        self._write: Callable[[str], None] = self._write_text
        super().__init__(tools, **options)

    @property
    def is_reasoning(self) -> bool:
        return self._write == self._write_reasoning

    def take_reasoning(self) -> str:
        reasoning = "".join(self._reasoning)
        self._reasoning.clear()
        return reasoning

    def read_text(self) -> Steps[None]:
        # The prompt has the beginning of the first header.
        yield from self.try_calls("")
        while tag := (
            yield from self.read_until(self._write, *self.markers, _END, _CALL, _RETURN)
        ):
            self._write = self._write_text
            if tag in self.markers:
                yield from self.try_calls(tag)
            self.held.clear()
        self.release(self._write)

    def read_calls(self, marker: str) -> Steps[None]:
        """Read a header, and the call behind it if there is one."""
        channel, recipient = yield from self._read_header(marker)
        self.held.clear()
        if not recipient or not self.tools.has_any:
            self._begin_message(channel)
            return
        yield from self.skip_space()
        yield from self.pass_call(recipient.removeprefix("functions."))

    def is_markup(self, marker: str) -> bool:
        is_header = not {_TO, *self.tags}.isdisjoint(self.held)
        return is_header or super().is_markup(marker)

    def _read_header(self, marker: str) -> Steps[tuple[str, str]]:
        """Return the channel and the recipient, which may be empty.

        Raises:
          NotACall: it is not a header.
        """
        channel = recipient = ""
        if marker == _START:
            # The role.
            yield from self.read_name()
        elif marker == _CHANNEL:
            channel = yield from self.read_name()
        for _ in range(_MAX_HEADER_PARTS):
            yield from self.skip_space()
            part = yield from self.accept(_TO, _CHANNEL, _CONSTRAIN, _MESSAGE)
            if part == _MESSAGE:
                return channel, recipient
            # The type of the content may stand without a tag, but not before the channel.
            if not part and not channel:
                break
            word = yield from self.read_name()
            if part == _TO:
                recipient = word
            elif part == _CHANNEL:
                channel = word
        raise NotACall

    def _begin_message(self, channel: str) -> None:
        is_reasoning = channel == "analysis"
        self._write = self._write_reasoning if is_reasoning else self._write_text
        if self._has_reasoning if is_reasoning else self._has_text:
            self._write("\n")

    def _write_reasoning(self, text: str) -> None:
        if text and not self.writer.is_full:
            self._has_reasoning = True
            self._reasoning.append(text)

    def _write_text(self, text: str) -> None:
        self._has_text = self._has_text or bool(text)
        self.writer.write_text(text)

    @classmethod
    def choose_form(cls, template: str) -> CallForm:
        return CallForm(
            before=f"{_CHANNEL}commentary to=functions.",
            between=f" {_CONSTRAIN}json{_MESSAGE}",
            thought=_THOUGHT,
            takes_one=True,
        )
