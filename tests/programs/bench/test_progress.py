"""The bar shows the rounds, and the answers within one."""

from __future__ import annotations

import io
import sys

import pytest

from trioserve.programs.bench.command import RoundBar
from trioserve.programs.bench.generation.load import Load
from trioserve.programs.bench.measuring.measured_servers import Server


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_shows_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("trioserve.programs.bench.command._SHORTEST_PAUSE", 0)
    monkeypatch.setenv("COLUMNS", "200")
    bar = RoundBar(Load(rounds=3), 9)
    server = Server(label="our\x1bs", url="http://127.0.0.1:1")
    bar.begin(server, 16, 1)
    bar.count_answer()
    bar.count_answer()
    bar.end()
    bar.close()
    frames = terminal.getvalue().split("\r")
    assert any(
        each.startswith("0/9 rounds") and "ours" not in each
        for each in frames
        if "our\\x1bs, 16 clients, round 2 of 3: 2 answers" in each
    )
    assert any(each.startswith("1/9 rounds") for each in frames)


def test_a_log_has_no_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bar = RoundBar(Load(request_rate=(1.0,)), 1)
    bar.begin(Server(label="a", url="http://127.0.0.1:1"), 1.0, 0)
    bar.count_answer()
    bar.end()
    bar.close()
    assert capsys.readouterr().err == ""
