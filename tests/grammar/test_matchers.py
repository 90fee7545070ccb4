"""Built grammars are kept while there is room for them."""

from __future__ import annotations

import gc
import weakref

from llguidance import LLMatcher, LLTokenizer
import pytest

from trioserve.grammar import matchers as module
from trioserve.grammar.compile import compile_structure
from trioserve.grammar.failures import GrammarError
from trioserve.grammar.matchers import Matchers
from trioserve.types.structured import StructuredOutput

TEXT = compile_structure(StructuredOutput(kind="choice", choices=("xy",)))
# Blanks behind the JSON. A built grammar counts ten times its text.
LONG, OTHER, HUGE = (TEXT + " " * num * 2**16 for num in (14, 8, 30))
MAX_BYTES = 2**24


@pytest.fixture
def matchers(guidance: LLTokenizer, monkeypatch: pytest.MonkeyPatch) -> Matchers:
    monkeypatch.setattr(module, "MAX_BYTES", MAX_BYTES)
    return Matchers(lambda: guidance)


def build(matchers: Matchers, *texts: str) -> None:
    for text in texts:
        matchers.build(text)


def test_a_grammar_that_is_built_twice_counts_once(matchers: Matchers) -> None:
    build(matchers, LONG, LONG, LONG, OTHER, OTHER)
    assert matchers.find(LONG) and matchers.find(OTHER)


def test_the_newest_grammar_is_found_however_long_it_is(matchers: Matchers) -> None:
    build(matchers, TEXT, HUGE)
    assert matchers.find(HUGE) and matchers.find(TEXT) is None
    build(matchers, TEXT)
    assert matchers.find(TEXT) and matchers.find(HUGE) is None
    # Nothing of the long one is counted any more.
    build(matchers, LONG, OTHER)
    assert matchers.find(TEXT) and matchers.find(LONG) and matchers.find(OTHER)


def test_what_masks_may_have_added_counts(matchers: Matchers) -> None:
    texts = [TEXT + " " * num for num in range(20)]
    for text in texts:
        build(matchers, text)
        # Some 4 MiB.
        matchers.note_work(text, 2**-6)
        assert matchers.num_bytes <= MAX_BYTES
    assert sum(matchers.find(text) is not None for text in texts) <= 4
    matchers.shrink(2**23)
    assert 0 < matchers.num_bytes <= 2**23
    matchers.shrink(0)
    assert matchers.num_bytes == 0
    assert not any(map(matchers.find, texts))


def test_the_largest_grammar_goes_first(matchers: Matchers) -> None:
    texts = [TEXT + " " * num for num in range(3)]
    build(matchers, *texts)
    matchers.note_work(texts[1], 0.04)
    matchers.note_work(texts[2], 0.03)
    assert [matchers.find(text) is not None for text in texts] == [True, False, True]


def test_a_failed_build_keeps_its_reason_and_no_frames(matchers: Matchers) -> None:
    text = '{"grammars": [{"lark_grammar": "start: nope"}]}'

    class Caller:
        """Stands in a frame that an error passes."""

    def open_() -> weakref.ref[Caller]:
        caller = Caller()
        with pytest.raises(GrammarError, match="nope"):
            matchers.build(text).open()
        return weakref.ref(caller)

    gone = open_()
    gc.collect()
    assert gone() is None
    built = matchers.find(text)
    assert built is not None and isinstance(built.matcher, GrammarError)
    assert built.matcher.__traceback__ is None


def test_a_grammar_that_is_there_is_not_built_again(
    matchers: Matchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(matchers, TEXT)

    def fail(*args: object, **options: object) -> LLMatcher:
        raise RuntimeError("built again")

    monkeypatch.setattr(module, "LLMatcher", fail)
    build(matchers, TEXT)
    assert matchers.find(TEXT)
