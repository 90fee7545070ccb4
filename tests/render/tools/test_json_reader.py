"""JSON that comes in pieces is followed as the standard library reads it."""

from __future__ import annotations

import json
from typing import Any

from examples import examples
from hypothesis import example, given, settings, strategies as st
import pytest

from trioserve.render.tools.json_reader import JsonReader

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def read(pieces: list[str]) -> tuple[str, JsonReader, int]:
    """Return the text that passed, the reader, and the number of characters taken."""
    reader = JsonReader()
    passed, num_taken = "", 0
    for piece in pieces:
        text, end = reader.read(piece, 0, len(piece))
        passed += text
        num_taken += end
        if end < len(piece):
            break
    return passed, reader, num_taken


@settings(max_examples=examples(60))
@given(value=values, indent=st.sampled_from([None, 1]), is_ascii=st.booleans())
def test_every_value_passes_unchanged(
    value: Any, indent: int | None, is_ascii: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    for pieces in ([text], list(text)):
        passed, reader, _ = read(pieces)
        assert passed == text
        assert reader.is_complete


@given(
    text=st.text(st.sampled_from('{}[]",:\\u0019-+.eEaflnrst \n\x01'), max_size=12),
    begins=st.sampled_from(["", "{", "[", '{"a": ', '["', "[1"]),
)
@example(text="", begins="-")
@example(text="01", begins="[")
@example(text="1.e5]", begins="[")
def test_exactly_json_is_complete(text: str, begins: str) -> None:
    text = begins + text
    passed, reader, num_taken = read([text])
    try:
        json.loads(text, parse_constant=_refuse, strict=False)
        is_json = True
    except ValueError:
        is_json = False
    rest = text[num_taken:]
    if is_json:
        assert reader.is_complete and not rest.strip(" \t\r\n")
    else:
        assert not reader.is_complete or rest.strip(" \t\r\n")
    # The division does not matter.
    in_pieces, other, num_taken_in_pieces = read(list(text))
    assert in_pieces == passed
    assert num_taken_in_pieces == num_taken
    assert other.is_complete == reader.is_complete


def _refuse(constant: str) -> None:
    raise ValueError(constant)


@given(value=st.text())
def test_control_characters_in_strings_are_escaped(value: str) -> None:
    raw = '"' + value.replace("\\", "").replace('"', "") + '"'
    passed, reader, _ = read(list(raw))
    assert reader.is_done
    assert json.loads(passed) == raw[1:-1]


@pytest.mark.parametrize(("depth", "is_broken"), [(64, False), (65, True)])
def test_the_depth_is_bounded(depth: int, is_broken: bool) -> None:
    _, reader, _ = read(["[" * depth])
    assert reader.is_broken == is_broken
