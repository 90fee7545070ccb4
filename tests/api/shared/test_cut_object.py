"""An object that was cut off keeps its whole members, as in Anthropic's client."""

from __future__ import annotations

import json

from hypothesis import given, strategies as st
import jiter

from trioserve.api.shared.cut_object import keep_whole_members

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a"\\,:{}[]\n é', max_size=6),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(
    value=st.dictionaries(st.text(max_size=3), VALUES, max_size=4), place=st.integers(0)
)
def test_a_cut_object_is_read_as_the_client_reads_it(
    value: dict[str, object], place: int
) -> None:
    text = json.dumps(value, ensure_ascii=place % 2 == 0)
    cut = text[: 1 + place % len(text)]
    whole = keep_whole_members(cut)
    # The client also takes a number or a word at the end, which may go on.
    if cut[-1] in '"}],:':
        assert json.loads(whole) == jiter.from_json(cut.encode(), partial_mode=True)
    assert isinstance(json.loads(whole), dict)


def test_whole_members_are_kept() -> None:
    for text, kept in (
        ('{"city": "Ro', "{}"),
        ('{"a": 1, "b": 2', '{"a": 1}'),
        ('{"a": [1, {"b": "x", "c": "y', '{"a": [1, {"b": "x"}]}'),
        ('{"a": "x\\', "{}"),
        ("{", "{}"),
        ("", ""),
        ("}1", ""),
        ('{"a": 1}}', '{"a": 1}'),
        ('{"a": {}, "b"', '{"a": {}}'),
        ('{"a": "b"', '{"a": "b"}'),
        ('{"a": "b\\"', "{}"),
        ('{"a": [1, 2}, "b": 3]}', '{"a": [1, 2]}'),
        ("{]", "{}"),
    ):
        assert keep_whole_members(text) == kept
