"""Quoted texts cannot forge lines of the log."""

from __future__ import annotations

import io
import logging
from pathlib import Path
import subprocess
import sys

from hypothesis import given, strategies as st
import pytest

from trioserve.errors import escape
from trioserve.startup.log_lines import LineFormatter

FORGED = "2026-01-01 00:00:00 CRITICAL trioserve: all is lost"
BREAKS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"]


@pytest.fixture
def log() -> tuple[logging.Logger, io.StringIO]:
    """A logger, and its output."""
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


_KEYS_IN_HEADERS = """
import logging, sys
from trioserve.startup.log_lines import set_up_logging
set_up_logging(sys.argv[1], origin="50%(x)s\\n")
from hpack import Decoder, Encoder
Decoder().decode(Encoder().encode([("authorization", "Bearer sk-secret")]))
for name in ("trioserve.server", "h2", "hypercorn.error", "httpcore", "trioserve"):
    for level in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger(name), level)("%s of %s", level, name)
"""


@pytest.mark.parametrize("level", ["DEBUG", "ERROR"])
def test_libraries_log_at_warning_at_the_lowest(level: str) -> None:
    command = [sys.executable, "-c", _KEYS_IN_HEADERS, level]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # The name of a model may have any characters.
    assert all(" 50%(x)s\\n " in line for line in done.stderr.splitlines())
    lines = [line.rpartition(": ")[2] for line in done.stderr.splitlines()]
    levels = ["debug", "info", "warning", "error"]
    ours = levels[levels.index(level.lower()) :]
    assert lines == [
        f"{each} of {name}"
        for name in (
            "trioserve.server",
            "h2",
            "hypercorn.error",
            "httpcore",
            "trioserve",
        )
        for each in (ours if name.startswith("trioserve") else ours[-2:])
    ]


def test_no_process_sets_its_logging_up_another_way() -> None:
    package = Path(sys.modules["trioserve"].__file__ or "").parent
    callers = {
        path.name
        for path in package.rglob("*.py")
        if "basicConfig(" in path.read_text() or "Formatter(" in path.read_text()
    }
    assert callers == {"log_lines.py"}
