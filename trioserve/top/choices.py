"""The choices of the user: order, selection, and questions before a cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from .client import Request
from .config import Order
from .poller import Poller
from .table import ORDERS, sort

HELP: Final = (
    "q quit  up/down select  enter details  c cancel  C cancel all  "
    + "  ".join(f"{order[0]} {order}" for order in ORDERS)
    + "  r reverse"
)

Move = Literal["up", "down", "page up", "page down", "first", "last", "enter", "escape"]


class Choices:
    """The state of the screen; it changes with each key.

    Args:
      poller: gets the user's orders.

    Attributes:
      order, is_reversed: of the rows.
      selected: the number of a row.
      shown: the id of the request that is shown in full; None for the table.
      question: what is asked now; empty if nothing is.
    """

    def __init__(self, poller: Poller, order: Order) -> None:
        self.order: Order = order
        self.is_reversed = False
        self.selected = 0
        self.shown: str | None = None
        self.question = ""
        self._poller = poller
        self._selected_id = ""
        self._doomed: str | None = None

    def arrange(self, requests: Sequence[Request]) -> list[Request]:
        """Return requests in the chosen order; the same one stays selected."""
        rows = sort(requests, self.order, reverse=self.is_reversed)
        ids = [each.id for each in rows]
        if self._selected_id in ids:
            self.selected = ids.index(self._selected_id)
        self.selected = max(0, min(self.selected, len(rows) - 1))
        self._selected_id = ids[self.selected] if rows else ""
        return rows

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
            "first": -len(rows),
            "last": len(rows),
        }
        if move == "escape":
            self._show(None)
        elif move == "enter":
            self._show(self._selected_id if self.shown is None else None)
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
        self._poller.show(self.shown)
