"""A guide allows reasoning first, and the tokens of the grammar after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llguidance import LLMatcher, LLTokenizer
import numpy as np
import pytest
from tokenizers import Tokenizer

from trioserve.grammar.compile import compile_structure
from trioserve.grammar.failures import GrammarError, LibraryFailed
from trioserve.grammar.guide import Guide, count_words
from trioserve.types.structured import Grammar, StructuredOutput

# As in conftest.guidance.
IM_END, VOCAB_SIZE = 1, 520

OpenMatcher = Callable[[StructuredOutput], LLMatcher]

YES_OR_NO = StructuredOutput(kind="choice", choices=("yes", "no"))


def open_guide(
    open_matcher: OpenMatcher,
    *,
    start: tuple[int, ...] = (),
    end: tuple[int, ...] = (),
    is_open: bool = False,
) -> Guide:
    grammar = Grammar(
        text="", start_token_ids=start, end_token_ids=end, is_open=is_open
    )
    return Guide(open_matcher(YES_OR_NO), grammar, [IM_END])


def list_allowed(guide: Guide) -> set[int]:
    mask = np.zeros(count_words(VOCAB_SIZE), dtype=np.int32)
    guide.write_mask(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits[:VOCAB_SIZE]).tolist())


@pytest.fixture
def first(tokenizer: Tokenizer) -> set[int]:
    """The tokens with which an answer may begin."""
    return {
        token_id
        for token, token_id in tokenizer.get_vocab().items()
        if token and ("yes".startswith(token) or "no".startswith(token))
    }


def read_text(guide: Guide, tokenizer: Tokenizer, text: str) -> None:
    for token_id in tokenizer.encode(text).ids:
        guide.read(token_id)


def test_only_tokens_of_the_grammar_are_allowed(
    open_matcher: OpenMatcher, tokenizer: Tokenizer, first: set[int]
) -> None:
    guide = open_guide(open_matcher)
    assert list_allowed(guide) == first
    read_text(guide, tokenizer, "no")
    assert list_allowed(guide) == {IM_END}
    guide.read(IM_END)


def test_a_token_that_does_not_fit_is_an_error(
    open_matcher: OpenMatcher, tokenizer: Tokenizer
) -> None:
    guide = open_guide(open_matcher)
    with pytest.raises(GrammarError, match="does not fit"):
        read_text(guide, tokenizer, "maybe")


def test_a_form_that_no_text_has_is_an_error(guidance: LLTokenizer) -> None:
    form = StructuredOutput(kind="grammar", value="start: start")
    matcher = LLMatcher(guidance, compile_structure(form), log_level=0)
    with pytest.raises(GrammarError, match="no text has the form"):
        list_allowed(Guide(matcher, Grammar(text=""), [IM_END]))


def test_an_end_token_within_a_grammar_ends_nothing(
    guidance: LLTokenizer, tokenizer: Tokenizer
) -> None:
    lark = 'start: "x" <|im_end|> "y"'
    form = StructuredOutput(kind="grammar", value=lark)
    matcher = LLMatcher(guidance, compile_structure(form), log_level=0)
    guide = Guide(matcher, Grammar(text=""), [IM_END])
    read_text(guide, tokenizer, "x")
    # No token is left, which is an error, and no answer that does not match.
    assert list_allowed(guide) == set()


def test_reasoning_is_free_but_may_not_end_the_sequence(
    open_matcher: OpenMatcher, tokenizer: Tokenizer, first: set[int]
) -> None:
    end = tuple(tokenizer.encode("</think>").ids)
    assert len(end) > 1
    guide = open_guide(open_matcher, start=(300,), end=end, is_open=True)
    assert list_allowed(guide) == set(range(VOCAB_SIZE)) - {IM_END}
    read_text(guide, tokenizer, "I think <thin, no")
    assert list_allowed(guide) == set(range(VOCAB_SIZE)) - {IM_END}
    read_text(guide, tokenizer, "</think>")
    assert list_allowed(guide) == first


def test_an_answer_may_begin_with_reasoning_or_without(
    open_matcher: OpenMatcher, tokenizer: Tokenizer, first: set[int]
) -> None:
    start, end = (300, 301), (302,)
    guide = open_guide(open_matcher, start=start, end=end)
    assert list_allowed(guide) == first | {300}
    guide.read(300)
    assert list_allowed(guide) == {301}
    guide.read(301)
    assert list_allowed(guide) == set(range(VOCAB_SIZE)) - {IM_END}
    guide.read(302)
    assert list_allowed(guide) == first
    without = open_guide(open_matcher, start=start, end=end)
    read_text(without, tokenizer, "yes")
    assert list_allowed(without) == {IM_END}


def test_a_defect_of_the_library_is_not_told_to_the_client(
    open_matcher: OpenMatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panicking:
        def unsafe_compute_mask_ptr(self, address: int, size: int) -> None:
            pass

        def is_error(self) -> bool:
            return True

        def get_error(self) -> str:
            return "panic: index out of bounds: parser.rs:31"

    matcher: Any = Panicking()
    with pytest.raises(LibraryFailed):
        list_allowed(Guide(matcher, Grammar(text=""), [IM_END]))
