"""Keys sort, select, and ask before they cancel."""

from __future__ import annotations

from trioserve.programs.top.choices import DETAILS_HELP, HELP, Choices, Move
from trioserve.programs.top.client import Request


class FakePoller:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str | None]] = []

    def show(self, request_id: str | None) -> None:
        self.calls.append(("show", request_id))

    def cancel(self, request_id: str) -> None:
        self.calls.append(("cancel", request_id))

    def cancel_all(self) -> None:
        self.calls.append(("cancel all", None))


def make(*ids: str) -> list[Request]:
    return [
        Request(
            id=each,
            method="POST",
            path="/",
            phase="decode",
            age_seconds=100.0 - number,
            prompt_tokens=number,
            completion_tokens=0,
        )
        for number, each in enumerate(ids)
    ]


def open_choices() -> tuple[Choices, FakePoller]:
    poller = FakePoller()
    return Choices(poller, "age"), poller  # type: ignore[arg-type]


def list_ids(rows: list[Request]) -> list[str]:
    return [each.id for each in rows]


def test_letters_choose_the_order() -> None:
    choices, _ = open_choices()
    requests = make("b", "a", "c")
    assert list_ids(choices.arrange(requests)) == ["b", "a", "c"]
    assert choices.press("i")
    assert list_ids(choices.arrange(requests)) == ["a", "b", "c"]
    choices.press("r")
    assert list_ids(choices.arrange(requests)) == ["c", "b", "a"]
    choices.press("t")
    assert choices.order == "tokens"
    assert choices.press("x")
    assert not choices.press("q")


def test_the_selected_request_stays_selected() -> None:
    choices, _ = open_choices()
    rows = choices.arrange(make("a", "b", "c"))
    choices.move("down", rows, 10)
    choices.arrange(make("new", "a", "b", "c"))
    assert choices.selected == 2
    # When it has ended, the one in its place is selected.
    choices.arrange(make("new", "a", "c"))
    assert choices.selected == 2
    rows = choices.arrange([])
    choices.move("down", rows, 10)
    assert choices.selected == 0
    rows = choices.arrange(make(*"abcdefgh"))
    choices.move("last", rows, 3)
    choices.move("page up", rows, 3)
    assert choices.selected == 4


def test_a_cancel_is_asked_for() -> None:
    choices, poller = open_choices()
    choices.press("c")
    assert choices.question == ""
    rows = choices.arrange(make("a", "b"))
    choices.move("down", rows, 10)
    for answer in ("n", "q", "c"):
        choices.press("c")
        assert choices.question == "cancel b? y/n"
        assert choices.press(answer)
        assert choices.question == ""
    choices.press("c")
    choices.move("escape", rows, 10)
    assert poller.calls == []
    choices.press("c")
    # The answer is for the request that the question named.
    choices.arrange(make("a"))
    choices.press("y")
    choices.press("C")
    choices.press("Y")
    assert poller.calls == [("cancel", "b"), ("cancel all", None)]


def test_equal_ids_do_not_hold_the_selection() -> None:
    choices, _ = open_choices()
    requests = make("a", "dup", "dup", "last")
    for number in range(1, 4):
        choices.move("down", choices.arrange(requests), 10)
        choices.arrange(requests)
        assert choices.selected == number
    choices.arrange(requests[:2])
    assert choices.selected == 1


def test_the_lines_of_one_request_scroll() -> None:
    choices, _ = open_choices()
    rows = choices.arrange(make("a", "b"))
    choices.move("enter", rows, 10)
    lines = [str(number) for number in range(21)]
    moves: list[tuple[Move, int]] = [
        *(("up", 0), ("down", 1), ("page down", 5), ("last", 11)),
        *(("down", 11), ("page up", 7), ("first", 0), ("last", 11)),
    ]
    for move, first in moves:
        choices.move(move, rows, 4)
        assert choices.cut(lines, 10) == lines[first : first + 10]
    assert choices.cut(lines[:3], 10) == lines[:3]
    assert choices.selected == 0
    choices.move("enter", rows, 10)
    choices.move("down", rows, 10)
    assert choices.selected == 1


def test_the_help_fits_80_columns() -> None:
    assert max(len(HELP), len(DETAILS_HELP)) < 80


def test_enter_shows_one_request() -> None:
    choices, poller = open_choices()
    rows = choices.arrange(make("a", "b"))
    choices.move("enter", rows, 10)
    assert choices.shown == "a"
    choices.press("c")
    assert choices.question == "cancel a? y/n"
    choices.press("n")
    choices.move("enter", rows, 10)
    choices.move("enter", rows, 10)
    choices.move("escape", rows, 10)
    assert poller.calls == [("show", "a"), ("show", None)] * 2
