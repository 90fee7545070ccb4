"""Finished blocks are final."""

from __future__ import annotations

from hypothesis import given, strategies as st
import pytest

from trioserve.programs.chat.blocks import (
    MARKDOWN,
    split_blocks,
    split_finished_blocks,
    split_lines,
)


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("", ""),
        ("one", ""),
        ("one\n\n", ""),
        ("one\n\ntwo", ""),
        ("one\n\ntwo\n", "one\n\n"),
        # The line may become "#hash", which is not a heading.
        ("one\n#", ""),
        ("one\n# two\n", "one\n"),
        ("```\na\n\nb\n", ""),
        ("```\na\n```\nb\n", "```\na\n```\n"),
        ("- a\n\n- b\n\n  c\n", ""),
        ("a | b\n--|--\nc | d\n", ""),
        ("> a\n\nb\n\nc\n", "> a\n\nb\n\n"),
    ],
)
def test_all_blocks_but_the_last_are_finished(text: str, finished: str) -> None:
    parts = split_finished_blocks(text)
    assert "".join(parts[:-1]) == finished
    assert "".join(parts) == text


@given(
    st.lists(
        st.sampled_from(
            ["a", "# b", "- c", "  d", "```", "", "> e", "1. f", "---", "|g|", "|-|"]
        )
    )
)
def test_finished_blocks_stay_as_they_are(lines: list[str]) -> None:
    """A whole text has the blocks that it had when they were finished."""
    text = "\n".join(lines) + "\n"
    parts: list[str] = []
    rest = ""
    for line in text.splitlines(keepends=True):
        *finished, rest = split_finished_blocks(rest + line)
        parts += finished
    assert "".join(parts) + rest == text
    blocks = [block for part in [*parts, rest] for block in list_blocks(part)]
    assert blocks == list_blocks(text)
    assert "".join(split_blocks(text)) == text


def list_blocks(text: str) -> list[tuple[str, str]]:
    return [(token.type, token.content) for token in MARKDOWN.parse(text)]


def test_complete_lines_are_finished() -> None:
    assert split_lines("a\nb\nc") == ["a\nb\n", "c"]
    assert split_lines("a") == ["a"]
