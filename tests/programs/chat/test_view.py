"""An answer in the terminal ends as it would have been drawn at once, in linear time."""

from __future__ import annotations

import io
from typing import Any

import pyte
import pytest
from rich.console import Console

from trioserve.programs.chat.answer_view import AnswerView, PlainView
from trioserve.programs.chat.answers import Piece
from trioserve.programs.chat.live_lines import LiveLines
from trioserve.programs.chat.markup import Markup
from trioserve.programs.chat.pipe import AnswerWriter

ANSWER = """\
# Title

A paragraph with **bold** text, `code` and a [link](http://x.test/a), which is long enough \
for two lines.

* one
* two
  * three

| name | number |
|------|--------|
| a    | 1      |
| bcd  | 23     |

```python
def double(x):

    return 2 * x
```

> quoted

<think>shown</think> &amp; the end"""


class Screen:
    """A terminal in memory.

    Attributes:
      written: all that was written.
    """

    def __init__(self, columns: int = 60, lines: int = 40) -> None:
        self.file = io.StringIO()
        self.written = ""
        self.lines = lines
        self._screen = pyte.HistoryScreen(columns, lines, history=100_000)
        self._screen.set_mode(pyte.modes.LNM)
        self._stream = pyte.Stream(self._screen)
        self.console = Console(
            file=self.file, force_terminal=True, width=columns, color_system="standard"
        )

    def open_view(self, **options: bool) -> AnswerView:
        chosen = {"shows_reasoning": True, "is_markdown": True, **options}
        lines = LiveLines(self.file, lambda: self.lines)
        return AnswerView(lines, Markup(self.console), **chosen)

    def read(self) -> list[str]:
        text = self.file.getvalue()
        self.file.seek(0)
        self.file.truncate()
        self.written += text
        self._stream.feed(text)
        gone = [
            "".join(row[column].data for column in range(self._screen.columns))
            for row in self._screen.history.top
        ]
        lines = [line.rstrip() for line in [*gone, *self._screen.display]]
        while lines and not lines[-1]:
            lines.pop()
        return lines


def show(text: str, step: int, screen: Screen, **options: bool) -> list[str]:
    view = screen.open_view(**options)
    for start in range(0, len(text), step):
        view.feed(Piece(text=text[start : start + step]))
        view.draw()
    view.finish()
    return screen.read()


@pytest.mark.parametrize(("columns", "lines"), [(60, 40), (20, 60), (60, 10)])
def test_a_streamed_answer_looks_like_a_whole_one(columns: int, lines: int) -> None:
    whole = show(ANSWER, len(ANSWER), Screen(columns, 100))
    assert "<think>shown</think>" in " ".join(" ".join(whole).split())
    assert show(ANSWER, 7, Screen(columns, lines)) == whole


def test_parts_of_an_answer_stand_apart() -> None:
    lines = show(ANSWER, len(ANSWER), Screen())
    assert lines[:3] == [
        "Title",
        "",
        "A paragraph with bold text, code and a link",
    ]
    assert "(http://x.test/a), which is long enough for two lines." in lines
    assert lines.count("") == 7
    assert [line.strip() for line in lines[-2:]] == [
        "",
        "<think>shown</think> & the end",
    ]


def test_a_long_answer_is_written_once() -> None:
    """The bytes for the terminal grow with the text, and not with its square."""
    sizes = []
    for number in (12, 24):
        screen = Screen(lines=20)
        text = "A paragraph of a few words that fills its line.\n\n" * number
        lines = show(text, 50, screen)
        assert len(lines) == 2 * number - 1
        sizes.append(len(screen.written))
    assert sizes[1] < 2.2 * sizes[0]
    # A block without an end, too: only its last lines can change.
    screen = Screen(lines=20)
    text = "* a point of this list\n" * 100
    assert len(show(text, 50, screen)) == 100
    assert len(screen.written) < 20 * len(text)


def test_the_pauses_grow_with_a_block() -> None:
    screen = Screen()
    view = screen.open_view()
    view.feed(Piece(text="short"))
    view.draw()
    short = view.pause
    view.feed(Piece(text="word " * 20_000))
    view.draw()
    assert short < view.pause <= 2.0


def test_reasoning_is_dimmed_and_stands_before_the_answer() -> None:
    screen = Screen()
    view = screen.open_view()
    view.draw()
    assert screen.read() == ["..."]
    for piece in ("\n", "First,\n\n**think", "**\n"):
        view.feed(Piece(reasoning=piece))
        view.draw()
    view.feed(Piece(text="\n\nThe answer", finish_reason=None))
    view.draw()
    view.finish()
    assert screen.read() == ["First,", "", "**think**", "", "The answer"]
    assert "\x1b[2;3mFirst,\x1b[0m" in screen.written
    assert "\x1b[2;3mThe" not in screen.written


def test_reasoning_can_be_left_out() -> None:
    screen = Screen()
    view = screen.open_view(shows_reasoning=False)
    view.feed(Piece(reasoning="hidden"))
    view.draw()
    view.feed(Piece(text="shown"))
    view.finish()
    assert screen.read() == ["shown"]


def test_an_answer_may_be_shown_as_it_is() -> None:
    lines = show("# a\n\n\n*b*  c\n", 3, Screen(), is_markdown=False)
    assert lines == ["# a", "", "", "*b*  c"]


def test_an_answer_without_text_leaves_nothing() -> None:
    screen = Screen()
    view = screen.open_view()
    view.draw()
    view.finish()
    assert screen.read() == []


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[2J\x1b]0;title\x07 x",
        "`\x1b[31m` **\x9b1m** x",
        "```\x1b[31m\n\x1b[2J x\n```",
        "<http://a.test/%1b[31m%07> x",
        "[x](http://a.test/%1b%5b31m '\x1b')",
        "&#27;&#x9b;&#13;&#7; x",
        "| \x1b[A | x |\n|---|---|\n| \x07 | x |",
        "![x\x1b[31m](http://a.test/%1b)",
    ],
)
def test_a_model_cannot_command_the_terminal(text: str) -> None:
    for is_markdown in (True, False):
        screen = Screen()
        lines = show(text, 1, screen, is_markdown=is_markdown)
        assert "x" in "".join(lines)
        # What is left belongs to the drawing: styles, and lines that are drawn again.
        rest = screen.written
        for part in rest.split("\x1b[")[1:]:
            command = part.lstrip("0123456789;")[0]
            assert command in "mAJ", part
        assert "\x07" not in rest and "\x9b" not in rest and "\x1b]" not in rest
        assert "\x1b[31m" not in rest and "\x1b[2J" not in rest


def test_a_terminal_that_cannot_change_lines_gets_plain_text(tmp_path: Any) -> None:
    with (tmp_path / "out").open("w") as file:
        view = PlainView(AnswerWriter(file), shows_reasoning=True)
        for piece in (
            Piece(reasoning="why"),
            Piece(text="# yes"),
            Piece(finish_reason="stop"),
        ):
            view.feed(piece)
            view.draw()
        view.finish()
    assert (tmp_path / "out").read_text() == "why\n\n# yes\n"


def test_a_poem_keeps_its_lines() -> None:
    assert show("The sea,\n*the* sea\n\nits end", 3, Screen()) == [
        *("The sea,", "the sea", "", "its end")
    ]
