"""Quoted texts cannot forge lines of the log."""

from __future__ import annotations

import io
import logging
from pathlib import Path
import sys

from hypothesis import given, strategies as st
import pytest

from trioserve.errors import escape
from trioserve.observe.log_lines import LineFormatter

FORGED = "2026-01-01 00:00:00 CRITICAL trioserve: all is lost"
BREAKS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"]


@pytest.fixture
def log() -> tuple[logging.Logger, io.StringIO]:
    """A logger, and what it writes."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s: %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger, written


@pytest.mark.parametrize("end", BREAKS)
def test_a_line_break_in_a_message_is_an_escape(
    log: tuple[logging.Logger, io.StringIO], end: str
) -> None:
    logger, written = log
    logger.warning("ignored: %s", f"a{end}{FORGED}")
    (line,) = written.getvalue().splitlines()
    assert line.endswith(f"WARNING: ignored: a{ascii(end)[1:-1]}{FORGED}")


@pytest.mark.parametrize("end", BREAKS)
def test_a_line_break_in_an_exceptions_text_begins_no_record(
    log: tuple[logging.Logger, io.StringIO], end: str
) -> None:
    logger, written = log
    try:
        raise ValueError(f"a{end}{FORGED}")
    except ValueError:
        logger.exception("a request failed", stack_info=True)
    first, *rest = written.getvalue().splitlines()
    assert first.endswith("ERROR: a request failed")
    assert any(FORGED in line for line in rest)
    assert all(line.startswith("    ") for line in rest)


def test_control_characters_of_a_terminal_are_escapes() -> None:
    assert escape("\x1b[2J\x07\u202e\ud800") == "\\x1b[2J\\x07\\u202e\\ud800"


def test_visible_characters_stay() -> None:
    assert escape("Zwölf 你好 🎉 \\n [a]") == "Zwölf 你好 🎉 \\n [a]"


@given(st.text())
def test_an_escaped_text_is_one_visible_line(text: str) -> None:
    assert escape(text).isprintable()
    assert escape(escape(text)) == escape(text)


def test_no_process_sets_its_logging_up_another_way() -> None:
    package = Path(sys.modules["trioserve"].__file__ or "").parent
    callers = {
        path.name
        for path in package.rglob("*.py")
        if "basicConfig(" in path.read_text() or "Formatter(" in path.read_text()
    }
    assert callers == {"log_lines.py"}
