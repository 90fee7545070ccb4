"""Turns token ids into the text of the answer and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from ...types.output import TextDelta
from .scanner import ToolScanner


class SequenceText(Protocol):
    """The text of one sequence: a Detokenizer, perhaps with parsers behind it."""

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Read the next output ids; after the end of the text they are ignored."""

    def finish(self, *, is_cut: bool = False) -> TextDelta:
        """End the text: return the held text.

        Args:
          is_cut: the model has not ended it itself.
        """


class ToolDetokenizer:
    """A SequenceText that splits tool calls off the text of another one.

    Stop strings and reasoning are found before that, unless the scanner finds the reasoning
    itself. If the scanner takes one call only, the sequence ends behind the first one, as it
    ends at a stop string.

    Args:
      text: it keeps the special tokens that the scanner looks for.
    """

    __slots__ = ("_scanner", "_text")

    def __init__(self, text: SequenceText, scanner: ToolScanner) -> None:
        self._text = text
        self._scanner = scanner

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        scanner = self._scanner
        if len(token_ids) < 2 or not (scanner.takes_one or scanner.splits_reasoning):
            return self._split(self._text.push(token_ids))
        # One by one, because tokens behind the first call do not count, and tokens of the
        # reasoning are counted.
        deltas = []
        for token_id in token_ids:
            deltas.append(self._split(self._text.push((token_id,))))
            if deltas[-1].finish_reason is not None:
                break
        return TextDelta.join(deltas)

    def finish(self, *, is_cut: bool = False) -> TextDelta:
        rest = self._text.finish(is_cut=is_cut)
        return self._split(rest, is_last=True, is_cut=is_cut)

    def _split(
        self, delta: TextDelta, *, is_last: bool = False, is_cut: bool = False
    ) -> TextDelta:
        scanner, reason = self._scanner, delta.finish_reason
        was_reasoning = scanner.is_reasoning
        # A stop string is the client's own end of the text, also where it was held back.
        text, calls = scanner.push(
            delta.text,
            is_last=is_last or reason is not None,
            is_cut=is_cut and reason is None,
        )
        if scanner.splits_reasoning:
            counts = was_reasoning or scanner.is_reasoning
            delta = msgspec.structs.replace(
                delta,
                reasoning=scanner.take_reasoning(),
                num_reasoning_tokens=len(delta.token_ids) if counts else 0,
            )
        if reason is None and scanner.is_done:
            reason = "stop"
        return msgspec.structs.replace(
            delta, text=text, tool_calls=calls, finish_reason=reason
        )
