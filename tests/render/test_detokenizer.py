"""Incremental text: whole characters, never retracted, for any split of the ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hypothesis import example, given, strategies as st
import pytest

from trioserve.render import Detokenizer
from trioserve.testing.tokenizer import NOT_PLAIN
from trioserve.types.output import TextDelta
from trioserve.types.prompt import Prompt

if TYPE_CHECKING:
    from conftest import Subject

# Some ids are beyond the vocabulary, because a model's output layer may be padded.
ids_lists = st.lists(st.integers(0, 530), max_size=40)
texts = st.text(max_size=30) | st.text("ab 你🙂é\n", max_size=30)
# hypothesis also draws strings from the source code, such as special tokens.
texts = texts.filter(lambda text: not any(name in text for name in NOT_PLAIN))
cuts = st.lists(st.integers(0, 40), max_size=4).map(sorted)

PROMPT = Prompt(token_ids=(300,))


def push_cut(
    detokenizer: Detokenizer, ids: Sequence[int], cuts: Sequence[int]
) -> tuple[str, int, str | None]:
    """Push ids, cut at `cuts`; return the text, the count of ids, the stop string."""
    deltas = [
        detokenizer.push(ids[start:end])
        for start, end in zip([0, *cuts], [*cuts, len(ids)])
    ]
    deltas.append(detokenizer.finish())
    text = "".join(delta.text for delta in deltas)
    return text, sum(len(delta.token_ids) for delta in deltas), deltas[-1].stop_reason


@given(ids=ids_lists, skip_special=st.booleans(), cuts=cuts)
def test_any_ids_give_the_text_of_a_byte_level_tokenizer(
    byte_level: Subject, ids: list[int], skip_special: bool, cuts: list[int]
) -> None:
    detokenizer = byte_level.renderer.open_detokenizer(
        PROMPT, skip_special_tokens=skip_special
    )
    text, num_tokens, _ = push_cut(detokenizer, ids, cuts)
    assert text == byte_level.decode(ids, skip_special_tokens=skip_special)
    assert num_tokens == len(ids)


@given(ids=ids_lists)
def test_any_ids_give_their_bytes_text_whatever_the_tokenizer(
    subject: Subject, ids: list[int]
) -> None:
    detokenizer = subject.renderer.open_detokenizer(PROMPT, skip_special_tokens=False)
    text, _, _ = push_cut(detokenizer, ids, [])
    joined = b"".join(map(subject.renderer.token_bytes, ids))
    assert text == joined.decode(errors="replace")


@given(ids=ids_lists)
def test_byte_fallback_text_is_the_tokenizers_own_where_that_is_whole(
    sentencepiece: Subject, ids: list[int]
) -> None:
    expected = sentencepiece.decode(ids)
    # After a prompt of special tokens, the output begins the text, as in `decode`.
    detokenizer = sentencepiece.renderer.open_detokenizer(Prompt(token_ids=(1,)))
    text, _, _ = push_cut(detokenizer, ids, range(len(ids)))
    if "\N{REPLACEMENT CHARACTER}" not in expected:
        assert text == expected


@given(text=texts)
@example("<0x41>")
def test_text_comes_back_behind_a_prompt_and_at_the_very_start(
    subject: Subject, text: str
) -> None:
    ids = subject.encode(text)
    # SentencePiece writes a space before every text except an empty one.
    prefix = " " if subject.renderer.vocabulary.drops_first_space and text else ""
    for prompt, expected in ((PROMPT, prefix + text), (Prompt(token_ids=(1,)), text)):
        detokenizer = subject.renderer.open_detokenizer(prompt)
        # No delta holds half a character.
        shown = ""
        for token_id in ids:
            shown += detokenizer.push([token_id]).text
            assert expected.startswith(shown)
        assert shown + detokenizer.finish().text == expected


def test_a_special_token_leaves_the_next_one_at_the_start(
    sentencepiece: Subject,
) -> None:
    detokenizer = sentencepiece.renderer.open_detokenizer(Prompt(token_ids=(1,)))
    ids = [1, *sentencepiece.encode("Hello")]
    text, _, _ = push_cut(detokenizer, ids, range(len(ids)))
    assert text == "Hello"


@given(ids=ids_lists)
@example(ids=[240, 163])  # b"\xed\xa0" of SentencePiece
def test_all_but_the_last_unfinished_character_is_shown_at_once(
    subject: Subject, ids: list[int]
) -> None:
    detokenizer = subject.renderer.open_detokenizer(PROMPT)
    shown = ""
    for count, token_id in enumerate(ids, 1):
        shown += detokenizer.push([token_id]).text
        joined = subject.renderer.vocabulary.join(ids[:count], skip_special_tokens=True)
        whole = joined.decode(errors="replace")
        assert whole.startswith(shown)
        # An unfinished character is one U+FFFD. A surrogate, which is not a character, is
        # two: Python's decoder waits for its three bytes, and replaces each of the first
        # two.
        assert whole[len(shown) :] in ("", "\ufffd", "\ufffd\ufffd")


@given(
    ids=ids_lists,
    cuts=cuts,
    stop=st.lists(st.text("abe t", min_size=1, max_size=2), max_size=3).map(tuple),
    include=st.booleans(),
    min_tokens=st.integers(0, 12),
)
def test_how_ids_are_split_changes_neither_text_nor_stop(
    byte_level: Subject,
    ids: list[int],
    cuts: list[int],
    stop: tuple[str, ...],
    include: bool,
    min_tokens: int,
) -> None:
    one_by_one, at_once, cut = (
        push_cut(
            byte_level.renderer.open_detokenizer(
                PROMPT,
                stop=stop,
                include_stop_str_in_output=include,
                min_tokens=min_tokens,
            ),
            ids,
            where,
        )
        for where in (range(len(ids)), [], cuts)
    )
    assert one_by_one == at_once == cut


@given(
    ids=ids_lists,
    stop=st.text("abe t", min_size=1, max_size=2),
    min_tokens=st.integers(0, 12),
)
def test_a_stop_string_ends_the_text_where_a_full_search_finds_it(
    byte_level: Subject, ids: list[int], stop: str, min_tokens: int
) -> None:
    detokenizer = byte_level.renderer.open_detokenizer(
        PROMPT, stop=(stop,), min_tokens=min_tokens
    )
    text, _, found = push_cut(detokenizer, ids, [])
    # Stop strings are ASCII, so half characters before them change no offsets.
    whole = byte_level.decode(ids)
    exempt = len(byte_level.decode(ids[:min_tokens]))
    place = whole.find(stop, max(0, exempt - len(stop) + 1))
    assert found == (stop if place >= 0 else None)
    assert text == (whole[:place] if place >= 0 else whole)


def push_text(subject: Subject, detokenizer: Detokenizer, text: str) -> TextDelta:
    return detokenizer.push(subject.encode(text))


def test_a_stop_string_over_token_borders_tells_which_tokens_belong(
    byte_level: Subject,
) -> None:
    detokenizer = byte_level.renderer.open_detokenizer(PROMPT, stop=("STOP", "END"))
    delta = push_text(byte_level, detokenizer, "xxSTOPxx")
    assert (delta.text, delta.stop_reason) == ("xx", "STOP")
    assert list(delta.token_ids) == byte_level.encode("xxSTOP")


def test_after_its_end_a_text_takes_no_more(byte_level: Subject) -> None:
    detokenizer = byte_level.renderer.open_detokenizer(PROMPT, stop=("!",))
    push_text(byte_level, detokenizer, "Hello!")
    late = push_text(byte_level, detokenizer, " more")
    assert late == TextDelta(finish_reason="stop", stop_reason="!")
    assert detokenizer.finish() == late


def test_held_text_is_released_at_the_end(byte_level: Subject) -> None:
    detokenizer = byte_level.renderer.open_detokenizer(PROMPT, stop=("\n\nUser:",))
    assert push_text(byte_level, detokenizer, "Bye.\n\nUs").text == "Bye."
    assert detokenizer.finish() == TextDelta(text="\n\nUs")


def test_half_a_character_at_the_end_is_shown_as_a_replacement(
    byte_level: Subject,
) -> None:
    detokenizer = byte_level.renderer.open_detokenizer(PROMPT)
    half = [byte_level.encode("🙂")[0]]
    assert detokenizer.push(half).text == ""
    assert detokenizer.finish().text == "\N{REPLACEMENT CHARACTER}"


def test_broken_bytes_after_whole_ones_retract_nothing(sentencepiece: Subject) -> None:
    """`decode` replaces the whole group of byte tokens by U+FFFD; a stream cannot."""
    ids = sentencepiece.encode("é🙂")
    detokenizer = sentencepiece.renderer.open_detokenizer(PROMPT)
    broken = ids[:-1] + sentencepiece.encode("b")
    assert "é" not in sentencepiece.decode(broken)
    text, _, _ = push_cut(detokenizer, broken, [])
    assert text == " é\N{REPLACEMENT CHARACTER} b"


def test_special_tokens_are_named_only_on_request(byte_level: Subject) -> None:
    ids = byte_level.encode("a<|im_end|>b")
    prompt = Prompt(token_ids=(0,))
    quiet = byte_level.renderer.open_detokenizer(prompt)
    loud = byte_level.renderer.open_detokenizer(prompt, skip_special_tokens=False)
    assert quiet.push(ids).text == "ab"
    assert loud.push(ids).text == "a<|im_end|>b"


@pytest.mark.parametrize("stop", [(), ("zzz",)])
def test_an_empty_push_adds_nothing(byte_level: Subject, stop: tuple[str, ...]) -> None:
    detokenizer = byte_level.renderer.open_detokenizer(PROMPT, stop=stop)
    assert detokenizer.push([]) == TextDelta(text="")


def test_a_stop_string_ends_nothing_up_to_min_tokens(byte_level: Subject) -> None:
    num_tokens = len(byte_level.encode("Yes!"))
    for min_tokens, text in ((num_tokens - 1, "Yes"), (num_tokens, "Yes! Yes")):
        detokenizer = byte_level.renderer.open_detokenizer(
            PROMPT, stop=("!",), min_tokens=min_tokens
        )
        assert push_text(byte_level, detokenizer, "Yes! Yes!").text == text
