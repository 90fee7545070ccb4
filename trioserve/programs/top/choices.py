"""The choices of the user: order, selection, and questions before a cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from .client import Request
from .config import Order
from .poller import Poller
from .table import ORDERS, sort

# Each fits a terminal of 80 columns. The first letter of an order chooses it.
HELP: Final = (
    f"q quit  enter show  c cancel  C all  r reverse  sort: {' '.join(ORDERS)}"
)
DETAILS_HELP: Final = "q quit  enter back  up/down scroll  c cancel  C all"

# More than there are rows and lines.
_END: Final = 2**31

Move = Literal["up", "down", "page up", "page down", "first", "last", "enter", "escape"]


class Choices:
    """The state of the screen; it changes with each key.

    Args:
      poller: gets the user's orders.

    Attributes:
      order, is_reversed: of the rows.
      selected: the number of a row.
      shown: the id of the request that is shown in full; None for the table.
      top_line: the number of the first of its lines that is shown.
      question: the present question; empty without one.
    """

    def __init__(self, poller: Poller, order: Order) -> None:
        self.order: Order = order
        self.is_reversed = False
        self.selected = 0
        self.shown: str | None = None
        self.top_line = 0
        self.question = ""
        self._poller = poller
        self._selected_id = ""
        self._doomed: str | None = None

    def arrange(self, requests: Sequence[Request]) -> list[Request]:
        """Return requests in the chosen order; the same one stays selected."""
        rows = sort(requests, self.order, reverse=self.is_reversed)
        ids = [each.id for each in rows]
        # Several may have the same id, so the row stays if it can.
        if self._selected_id not in ids[self.selected : self.selected + 1]:
            if self._selected_id in ids:
                self.selected = ids.index(self._selected_id)
        self.selected = max(0, min(self.selected, len(rows) - 1))
        self._selected_id = ids[self.selected] if rows else ""
        return rows

    def cut(self, lines: Sequence[str], room: int) -> Sequence[str]:
        """Return the lines of the shown request that there is room for."""
        self.top_line = max(0, min(self.top_line, len(lines) - room))
        return lines[self.top_line : self.top_line + room]

    def move(self, move: Move, rows: Sequence[Request], page: int) -> None:
        """Follow an arrow or another key without a letter."""
        if self.question:
            self.question = ""
            return
        steps: dict[Move, int] = {
            "up": -1,
            "down": 1,
            "page up": -page,
            "page down": page,
            "first": -_END,
            "last": _END,
        }
        if move == "escape":
            self._show(None)
        elif move == "enter":
            self._show(self._selected_id if self.shown is None else None)
        elif self.shown is not None:
            self.top_line = max(0, self.top_line + steps[move])
        elif rows:
            wanted = self.selected + steps[move]
            self.selected = max(0, min(wanted, len(rows) - 1))
            self._selected_id = rows[self.selected].id

    def press(self, letter: str) -> bool:
        """Follow a letter; returns whether the program goes on."""
        if self.question:
            self._answer(letter)
        elif letter == "q":
            return False
        elif letter == "c":
            if doomed := self.shown or self._selected_id:
                self._ask(doomed, f"cancel {doomed}? y/n")
        elif letter == "C":
            self._ask(None, "cancel all requests that this key sees? y/n")
        elif letter == "r":
            self.is_reversed = not self.is_reversed
        else:
            for order in ORDERS:
                if letter == order[0]:
                    self.order = order
        return True

    def _ask(self, doomed: str | None, question: str) -> None:
        self._doomed, self.question = doomed, question

    def _answer(self, letter: str) -> None:
        self.question = ""
        if letter.lower() != "y":
            return
        if self._doomed is None:
            self._poller.cancel_all()
        else:
            self._poller.cancel(self._doomed)

    def _show(self, request_id: str | None) -> None:
        self.shown = request_id or None
        self.top_line = 0
        self._poller.show(self.shown)
