"""The base of the scanners, each of which reads the tool calls of one family of models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
import secrets
from typing import ClassVar

from ...types.output import ToolCallDelta
from .call_form import AnswerForm, CallForm
from .cursor import NotACall, Steps, TextCursor
from .tool_table import ToolTable
from .writer import CallWriter


class ToolScanner(TextCursor, ABC):
    """Splits the text of one sequence into text and tool calls.

    Args:
      tools: the tools of the request.
      takes_one: everything behind the first call is dropped.
      calls_lead: calls stand at the beginning of the text, or nowhere.
      calls_only: the text has nothing but calls, because a grammar forces them.

    Attributes:
      answer_form: the text around the text of an answer; None if there is nothing.
      markers: texts that begin one or more calls.
      tags: all texts of the format that may be special tokens.
      template_parts: a chat template of the family contains all of these texts.
      template_tokens: the family's tokenizers have all of these tokens.
      opening: a bracket that begins calls at the beginning of an answer, without a marker.
      splits_reasoning: the scanner finds the reasoning, too, also without tools.
    """

    answer_form: ClassVar[AnswerForm | None] = None
    markers: ClassVar[tuple[str, ...]]
    tags: ClassVar[tuple[str, ...]]
    template_parts: ClassVar[tuple[str, ...]]
    template_tokens: ClassVar[tuple[str, ...]] = ()
    opening: ClassVar[str] = ""
    splits_reasoning: ClassVar[bool] = False

    def __init__(
        self,
        tools: ToolTable,
        *,
        takes_one: bool = False,
        calls_lead: bool = False,
        calls_only: bool = False,
    ) -> None:
        super().__init__()
        self.tools = tools
        self.takes_one = takes_one
        self.calls_lead = calls_lead
        self.calls_only = calls_only
        self.writer = CallWriter(takes_one=takes_one)
        self._in_call = False
        self._steps = self.read_text()
        next(self._steps)

    @property
    def is_done(self) -> bool:
        """True if the rest of the text is dropped."""
        return self.writer.is_full

    @property
    def is_reasoning(self) -> bool:
        """True if the last text was reasoning."""
        return False

    def take_reasoning(self) -> str:
        """Return the reasoning since the last time."""
        return ""

    def push(
        self, text: str, *, is_last: bool = False, is_cut: bool = False
    ) -> tuple[str, tuple[ToolCallDelta, ...]]:
        """Take the next piece; returns the text and the pieces of calls that it adds.

        Args:
          is_last: no more text follows. Text that is held is released.
          is_cut: the last text is not the model's own end, as with max_tokens. The beginning
            of a call is not released.
        """
        self.add(text)
        if is_last:
            self.end(is_cut=is_cut)
        next(self._steps, None)
        if is_last:
            self.writer.finish()
        return self.writer.take()

    @abstractmethod
    def read_calls(self, marker: str) -> Steps[None]:
        """Read the calls behind a marker, up to their end.

        Raises:
          NotACall: the next character does not belong to a call.
        """

    def read_text(self) -> Steps[None]:
        """Read the whole text."""
        write = self.writer.write_text
        if self.opening:
            yield from self.skip_space()
            if (yield from self.find(self.opening)):
                yield from self.try_calls("")
            else:
                self._give_back()
        if self.calls_lead and not (yield from self.find(*self.markers)):
            # Of the text of an answer that has a form; its strings may have markers in them.
            yield from self.read_until(write)
        while marker := (yield from self.read_until(write, *self.markers)):
            yield from self.try_calls(marker)
        self.release(write)

    def release(self, write: Callable[[str], None]) -> None:
        """Make text of the beginning of a tag, at which the text was cut off."""
        if not self.calls_only:
            write("".join(self.held))
        self.held.clear()

    def accepts(self, name: str) -> bool:
        """Return whether a call of this name is a call.

        A model may write the name of a tool that the client did not send. It is a call
        nevertheless, because the client can tell the model so.
        """
        return True

    def make_id(self, header: str) -> str:
        """Return the id of the next call.

        Args:
          header: the name of its function, as the model wrote it.
        """
        return f"call_{secrets.token_hex(12)}"

    @classmethod
    def marks(cls, form: CallForm) -> bool:
        """Return whether calls of a form begin with a marker, and so as no JSON value does."""
        return (form.first + form.before).startswith(cls.markers)

    @classmethod
    @abstractmethod
    def choose_form(cls, template: str) -> CallForm:
        """Return the form of calls, to force them by a grammar.

        Args:
          template: the model's chat templates, for families with two forms.
        """

    def try_calls(self, marker: str) -> Steps[None]:
        """Read calls. From the place at which they break, the text is text again."""
        try:
            yield from self.read_calls(marker)
            self.held.clear()
        except NotACall:
            self._break_off(marker)
        self._in_call = False

    def _give_back(self) -> None:
        """Make text of the answer of all that is held: it is not a call."""
        self.writer.write_text("".join(self.held))
        self.held.clear()

    def is_markup(self, marker: str) -> bool:
        """True if the held text cannot be an answer; the marker before it may be empty."""
        return bool(marker) or self.calls_only or self.writer.num_calls > 0

    def begin_call(self, name: str, header: str = "") -> None:
        """Announce a call. From here on its text does not become text of the answer."""
        self.held.clear()
        self._in_call = True
        self.writer.begin_call(name, self.make_id(header or name))

    def end_call(self) -> None:
        """End the call, because its arguments are complete."""
        self.held.clear()
        self.writer.end_call()

    def _break_off(self, marker: str) -> None:
        is_unfinished = self._in_call or (self.is_cut and self.is_markup(marker))
        if self.is_short and is_unfinished:
            # The end is missing, perhaps because of max_tokens: the call is not whole.
            self.held.clear()
        elif self._in_call:
            self.writer.end_call()
        self._give_back()
