"""The live screen, drawn with curses."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
import curses
import sys
from typing import Final

from ...errors import escape_ascii
from .choices import DETAILS_HELP, HELP, Choices, Move
from .client import Request
from .poller import Poller, Seen
from .table import has_models, write_details, write_heading, write_row, write_summary

# Milliseconds that a key is waited for before the screen is drawn again.
_TICK: Final = 100

_MOVES: Final[dict[int, Move]] = {
    curses.KEY_UP: "up",
    curses.KEY_DOWN: "down",
    curses.KEY_PPAGE: "page up",
    curses.KEY_NPAGE: "page down",
    curses.KEY_HOME: "first",
    curses.KEY_END: "last",
    curses.KEY_ENTER: "enter",
    ord("\n"): "enter",
    ord("\r"): "enter",
    27: "escape",
}

# Lines around the rows: the summary and the heading above, message and help below.
_MARGIN: Final = 4


class Screen:
    """Shows the requests of a server until the user quits.

    Args:
      url: of the server.
    """

    def __init__(self, poller: Poller, choices: Choices, url: str) -> None:
        self._poller = poller
        self._choices = choices
        self._url = url
        self._top_row = 0

    def run(self, window: curses.window) -> None:
        """Draw, and follow keys, until the user quits."""
        # Some terminals have no colours, and some cannot hide their cursor.
        with suppress(curses.error):
            curses.use_default_colors()
        with suppress(curses.error):
            curses.curs_set(0)
        window.timeout(_TICK)
        while True:
            seen = self._poller.seen
            rows = self._choices.arrange(seen.requests)
            self._draw(window, seen, rows)
            key = window.getch()
            if key in _MOVES:
                page = max(1, window.getmaxyx()[0] - _MARGIN)
                self._choices.move(_MOVES[key], rows, page)
            elif 0 < key < 256 and not self._choices.press(chr(key)):
                return
            elif key == -1 and not sys.stdin.isatty():
                # The terminal was closed, and not every program is told so by a signal.
                return

    def _draw(self, window: curses.window, seen: Seen, rows: Sequence[Request]) -> None:
        window.erase()
        height, width = window.getmaxyx()
        _write(
            window,
            0,
            f"{write_summary(rows, engines=seen.engines)}   "
            f"{escape_ascii(self._url)}",
            curses.A_BOLD,
        )
        room = max(0, height - _MARGIN)
        if self._choices.shown is None:
            self._draw_table(window, rows, room, width)
        else:
            self._draw_details(window, seen, room)
        note = self._choices.question or seen.error or seen.message
        style = curses.A_BOLD if self._choices.question or seen.error else 0
        _write(window, height - 2, escape_ascii(note), style)
        help = HELP if self._choices.shown is None else DETAILS_HELP
        _write(window, height - 1, help, curses.A_DIM)
        window.refresh()

    def _draw_table(
        self, window: curses.window, rows: Sequence[Request], room: int, width: int
    ) -> None:
        order = f"{write_heading(rows)}   by {self._choices.order}"
        _write(window, 1, order, curses.A_REVERSE)
        with_model = has_models(rows)
        selected = self._choices.selected
        # The selected row stays in sight.
        self._top_row = min(self._top_row, selected)
        self._top_row = max(self._top_row, selected - room + 1, 0)
        for line, row in enumerate(rows[self._top_row : self._top_row + room]):
            style = curses.A_STANDOUT if self._top_row + line == selected else 0
            _write(
                window, 2 + line, write_row(row, width, with_model=with_model), style
            )

    def _draw_details(self, window: curses.window, seen: Seen, room: int) -> None:
        lines = [line for each in seen.details for line in write_details(each)]
        lines = lines or ["it has ended"]
        cut = self._choices.cut(lines, room)
        last = self._choices.top_line + len(cut)
        title = f"one request; {last} of {len(lines)} lines; enter or escape goes back"
        _write(window, 1, title, curses.A_REVERSE)
        for number, line in enumerate(cut):
            _write(window, 2 + number, line)


def _write(window: curses.window, line: int, text: str, style: int = 0) -> None:
    height, width = window.getmaxyx()
    if 0 <= line < height and width > 1:
        # The last cell of the last line cannot be written without a scroll.
        window.addnstr(line, 0, text, width - 1, style)
