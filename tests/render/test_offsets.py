"""Offsets of tokens index the text that is returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from examples import examples
from hypothesis import example, given, settings, strategies as st
import msgspec
import pytest

from trioserve.testing.tokenizer import NOT_PLAIN
from trioserve.types.output import TextDelta
from trioserve.types.prompt import Prompt

if TYPE_CHECKING:
    from conftest import Subject

ids_lists = st.lists(st.integers(0, 530), max_size=40)
texts = st.text(max_size=30) | st.text("ab 🌶\u4f60\u00e9\n", max_size=30)
texts = texts.filter(lambda text: not any(name in text for name in NOT_PLAIN))
BEFORE = Prompt(token_ids=(300,))


def read(
    subject: Subject,
    ids: Sequence[int],
    *,
    prompt: Prompt = BEFORE,
    skip_special_tokens: bool = True,
    size: int = 1,
) -> tuple[str, list[int]]:
    """Return the text of tokens that come in groups, and where they begin in it."""
    detokenizer = subject.renderer.open_detokenizer(
        prompt, skip_special_tokens=skip_special_tokens
    )
    offsets = subject.renderer.open_offsets(
        prompt, skip_special_tokens=skip_special_tokens
    )
    found, text = [], ""
    for begin in range(0, len(ids), size):
        delta = detokenizer.push(ids[begin : begin + size])
        found += offsets.push(delta)
        text += delta.text
    return text + detokenizer.finish().text, found


# The bytes of half of a surrogate pair, by the numbers of SentencePiece.
@example(ids=[240, 163, 131], skips=False, size=1)
@example(ids=[240, 163, 300], skips=False, size=1)
@given(ids=ids_lists, skips=st.booleans(), size=st.integers(1, 5))
@settings(max_examples=examples(60))
def test_a_token_has_the_offset_of_the_character_of_its_first_byte(
    subject: Subject, ids: list[int], skips: bool, size: int
) -> None:
    text, offsets = read(subject, ids, skip_special_tokens=skips, size=size)
    spell = subject.renderer.vocabulary.choose_speller(skip_special_tokens=skips)
    written = b""
    for token_id, offset in zip(ids, offsets, strict=True):
        data = spell(token_id)
        if data:
            assert offset == len((written + data[:1]).decode(errors="replace")) - 1
        assert 0 <= offset <= len(text)
        written += data
    assert text == written.decode(errors="replace")


@given(text=texts.filter(bool))
@settings(max_examples=examples(60))
def test_a_prompt_and_its_answer_have_the_same_offsets(
    subject: Subject, text: str
) -> None:
    """At the beginning of a text, SentencePiece writes a space that the text lacks."""
    ids = subject.encode(text)
    special = Prompt(token_ids=tuple(subject.renderer.vocabulary.special_token_ids))
    answer, offsets = read(subject, ids, prompt=special)
    assert answer == text
    located = subject.renderer.locate_tokens(Prompt(token_ids=tuple(ids), text=text))
    assert located == offsets


@given(ids=ids_lists.filter(bool))
@settings(max_examples=examples(50))
def test_a_prompt_of_ids_is_located_in_its_text(
    byte_level: Subject, ids: list[int]
) -> None:
    """Special tokens are not in it."""
    text, offsets = read(byte_level, ids)
    prompt = Prompt(token_ids=tuple(ids), text=text)
    assert byte_level.renderer.locate_tokens(prompt) == offsets


def test_the_parts_of_a_character_are_where_it_is(byte_level: Subject) -> None:
    text = "I like \U0001f336 and"
    ids = byte_level.encode(text)
    offsets = byte_level.renderer.locate_tokens(Prompt(token_ids=tuple(ids), text=text))
    starts = [
        (offset, byte_level.renderer.token_bytes(token_id))
        for token_id, offset in zip(ids, offsets)
        if offset >= 7
    ]
    assert [offset for offset, data in starts if not data.isascii()] == [7] * 4
    assert all(
        text.startswith(data.decode(), offset)
        for offset, data in starts
        if data.isascii()
    )


def test_special_tokens_are_found_where_the_text_has_them(byte_level: Subject) -> None:
    locate = byte_level.renderer.locate_tokens
    [a] = byte_level.encode("a")
    assert locate(Prompt(token_ids=(0, a, 0, a), text="a<|im_start|>a")) == [
        0,
        0,
        1,
        13,
    ]
    assert locate(Prompt(token_ids=(0,) * 5, text="")) == [0] * 5


def test_tokens_behind_the_end_of_a_text_stand_at_its_end(byte_level: Subject) -> None:
    """A stop string has cut the text."""
    [a] = byte_level.encode("a")
    offsets = byte_level.renderer.open_offsets(
        BEFORE, skip_special_tokens=True, begin=10
    )
    first = TextDelta(text="a", token_ids=(a, a))
    assert offsets.push(first) == [10, 11]
    last = msgspec.structs.replace(first, text="", finish_reason="stop")
    assert offsets.push(last) == [11, 11]


@pytest.mark.parametrize(
    ("text", "read_as", "last"),
    [
        ("e\u0301 b", "\u00e9 b", 2),
        ("A b", "a b", 1),
        ("a      b", "a b", 6),
        ("\ufb01", "fffff", 1),
    ],
    ids=["joined", "lowered", "dropped", "split"],
)
def test_offsets_of_a_text_that_the_tokenizer_changes_are_in_it(
    byte_level: Subject, text: str, read_as: str, last: int
) -> None:
    ids = byte_level.encode(read_as)
    offsets = byte_level.renderer.locate_tokens(Prompt(token_ids=tuple(ids), text=text))
    assert offsets[0] == 0
    assert offsets[-1] == last
