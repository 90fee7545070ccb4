"""An answer in the terminal while it comes: reasoning dimmed, then Markdown.

Blocks are drawn as they grow, and for the last time when they are finished. So an answer
costs time in proportion to its length, if its blocks have one length; within a long block the
pauses between two drawings grow with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import time
from typing import Protocol

from .answers import Piece
from .blocks import split_blocks, split_finished_blocks, split_lines
from .live_lines import LiveLines
from .markup import Markup
from .pipe import AnswerWriter

# A screen that changes more often looks no smoother.
_SHORTEST_PAUSE = 0.05

# A longer pause looks like a server that hangs.
_LONGEST_PAUSE = 2.0

# The pause after a drawing, in times of the drawing: at most a ninth of a core is used.
_PAUSE_FACTOR = 8.0


class View(Protocol):
    """Shows one answer.

    Attributes:
      pause: seconds to wait after `draw` before the next call.
    """

    pause: float

    def feed(self, piece: Piece) -> None:
        """Take a piece."""

    def draw(self) -> None:
        """Show the pieces that came."""

    def finish(self) -> None:
        """Show all for the last time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One kind of text.

    Args:
      split: returns the parts of a text, of which only the last may still change.
      split_whole: returns the parts of a text that has ended.
      render: returns the lines of a part.
      has_gaps: a blank line stands between two parts.
    """

    split: Callable[[str], list[str]]
    split_whole: Callable[[str], list[str]]
    render: Callable[[str], list[str]]
    has_gaps: bool


class PlainView:
    """A View for terminals that cannot change lines, such as TERM=dumb."""

    def __init__(self, writer: AnswerWriter, *, shows_reasoning: bool) -> None:
        self.pause = _SHORTEST_PAUSE
        self._writer = writer
        self._shows_reasoning = shows_reasoning
        self._is_reasoning = False

    def feed(self, piece: Piece) -> None:
        if piece.reasoning and self._shows_reasoning:
            self._writer.write(piece.reasoning)
            self._is_reasoning = True
        if piece.text and self._is_reasoning:
            self._writer.write("\n\n")
            self._is_reasoning = False
        self._writer.write(piece.text)

    def draw(self) -> None:
        pass

    def finish(self) -> None:
        self._writer.finish()


class AnswerView:
    """A View for terminals that can change lines.

    Args:
      shows_reasoning: otherwise it is left out.
      is_markdown: otherwise the text is shown as it is.
    """

    def __init__(
        self,
        lines: LiveLines,
        markup: Markup,
        *,
        shows_reasoning: bool,
        is_markdown: bool,
    ) -> None:
        self.pause = _SHORTEST_PAUSE
        self._lines = lines
        self._shows_reasoning = shows_reasoning
        plain = Section(
            split=split_lines,
            split_whole=split_lines,
            render=markup.render_plain,
            has_gaps=False,
        )
        markdown = Section(
            split=split_finished_blocks,
            split_whole=split_blocks,
            render=markup.render_markdown,
            has_gaps=True,
        )
        self._answer = markdown if is_markdown else plain
        self._reasoning = Section(
            split=split_lines,
            split_whole=split_lines,
            render=markup.render_dimmed,
            has_gaps=False,
        )
        self._waiting = markup.render_dimmed("...")
        self._section = self._answer
        self._tail = ""
        self._has_lines = False
        self._is_drawn = False

    def feed(self, piece: Piece) -> None:
        if piece.reasoning and self._shows_reasoning:
            self._add(self._reasoning, piece.reasoning)
        if piece.text:
            self._add(self._answer, piece.text)

    def _add(self, section: Section, text: str) -> None:
        if section is not self._section:
            self._settle(self._tail.rstrip())
            if self._has_lines:
                self._lines.settle([""])
            self._section, self._tail, self._has_lines = section, "", False
        self._tail += text
        self._is_drawn = False
        if not self._has_lines:
            # Models begin with line ends.
            self._tail = self._tail.lstrip("\n")

    def draw(self) -> None:
        if self._is_drawn:
            return
        self._is_drawn = True
        began = time.perf_counter()
        *finished, self._tail = self._section.split(self._tail)
        for part in finished:
            self._settle(part)
        if self._tail.strip():
            self._lines.draw(self._arrange(self._tail))
        elif not self._has_lines:
            self._lines.draw(self._waiting)
        pause = (time.perf_counter() - began) * _PAUSE_FACTOR
        self.pause = min(max(pause, _SHORTEST_PAUSE), _LONGEST_PAUSE)

    def finish(self) -> None:
        self._settle(self._tail.rstrip())
        self._tail = ""

    def _settle(self, text: str) -> None:
        """Show a text for the last time, in place of the lines that are shown of it."""
        lines = self._arrange(text)
        self._lines.settle(lines)
        self._has_lines = self._has_lines or bool(lines)

    def _arrange(self, text: str) -> list[str]:
        """Return the lines of a text, and of the gap above it."""
        arranged: list[str] = []
        for part in self._section.split_whole(text):
            # Blank lines that someone wrote stay, where there are no gaps.
            is_shown = part.strip() if self._section.has_gaps else part
            lines = self._section.render(part) if is_shown else []
            if lines and self._section.has_gaps and (arranged or self._has_lines):
                arranged.append("")
            arranged += lines
        return arranged
