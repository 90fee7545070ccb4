"""No text of others commands the terminal, or forges a line."""

from __future__ import annotations

import json

from hypothesis import given, strategies as st
import msgspec

from trioserve.errors import (
    escape,
    escape_ascii,
    escape_json,
    join_names,
    make_line,
    make_safe,
)


def test_control_characters_become_pictures() -> None:
    assert make_safe("a\x1b[31mb\x07\x7f\x9b1m\r\n\tc\ud800") == (
        "a␛[31mb␇␡\ufffd1m\n\tc\ufffd"
    )


@given(st.text())
def test_no_text_has_commands(text: str) -> None:
    for each in make_safe(text):
        assert each in "\n\t" or not (each < " " or "\x7f" <= each <= "\x9f")
    for one_line in (escape(text), make_line(text), escape_ascii(text)):
        assert one_line.isprintable()
    assert escape_ascii(text).isascii()


@given(st.dictionaries(st.text(), st.text()))
def test_escaped_json_is_one_visible_line_with_the_same_meaning(
    values: dict[str, str],
) -> None:
    escaped = escape_json(msgspec.json.encode(values)).decode()
    assert escaped.isprintable()
    assert json.loads(escaped) == values


def test_an_escape_says_what_stood_there() -> None:
    assert escape("é\n\x1b\u202e") == "é\\n\\x1b\\u202e"
    assert escape_ascii("é\n中") == "\\xe9\\n\\u4e2d"
    assert make_line(" a\n b\x1b ") == "a b\\x1b"


def test_names_are_joined_as_a_sentence_has_them() -> None:
    assert [join_names("abc"[:n]) for n in range(4)] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
    assert join_names(["x"] * 99).endswith("x, x and 83 more")
