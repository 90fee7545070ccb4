"""Collects the text and the calls that a scanner finds."""

from __future__ import annotations

from ...types.output import ToolCallDelta


class CallWriter:
    """The results of a scanner since the last `take`.

    Whitespace directly before and behind a call is dropped: it belongs to the format.
    Therefore whitespace is held back until other text follows.

    Args:
      takes_one: everything behind the first complete call is dropped.

    Attributes:
      is_full: the first call is complete, and nothing may follow it.
      num_calls: the number of calls that have begun.
    """

    __slots__ = (
        "_after_call",
        "_arguments",
        "_begun",
        "_calls",
        "_space",
        "_takes_one",
        "_text",
        "is_full",
        "num_calls",
    )

    def __init__(self, *, takes_one: bool = False) -> None:
        self.is_full = False
        self.num_calls = 0
        self._takes_one = takes_one
        self._text: list[str] = []
        self._space: list[str] = []
        self._after_call = False
        self._calls: list[ToolCallDelta] = []
        # The first piece of the open call, and the pieces of its arguments.
        self._begun: ToolCallDelta | None = None
        self._arguments: list[str] = []

    def write_text(self, text: str) -> None:
        if self.is_full:
            return
        if self._after_call:
            text = text.lstrip()
            self._after_call = not text
        body = text.rstrip()
        if body:
            self._text += [*self._space, body]
            self._space.clear()
        if len(body) < len(text):
            self._space.append(text[len(body) :])

    def begin_call(self, name: str, call_id: str) -> None:
        if self.is_full:
            return
        self._close_piece()
        self._space.clear()
        self._after_call = True
        self._begun = ToolCallDelta(index=self.num_calls, id=call_id, name=name)
        self.num_calls += 1

    def write_arguments(self, text: str) -> None:
        if not self.is_full:
            self._arguments.append(text)

    def end_call(self) -> None:
        """Say that no more arguments of the call follow."""
        self._close_piece()
        self.is_full = self._takes_one

    def finish(self) -> None:
        """Say that no more text follows: release held whitespace."""
        if not self.is_full:
            self._text += self._space
            self._space.clear()

    def take(self) -> tuple[str, tuple[ToolCallDelta, ...]]:
        """Return the text and the pieces of calls since the last time."""
        self._close_piece()
        text, calls = "".join(self._text), tuple(self._calls)
        self._text.clear()
        self._calls.clear()
        return text, calls

    def _close_piece(self) -> None:
        arguments = "".join(self._arguments)
        self._arguments.clear()
        if self._begun is not None:
            self._calls.append(
                ToolCallDelta(
                    index=self._begun.index,
                    id=self._begun.id,
                    name=self._begun.name,
                    arguments=arguments,
                )
            )
            self._begun = None
        elif arguments:
            self._calls.append(
                ToolCallDelta(index=self.num_calls - 1, arguments=arguments)
            )
