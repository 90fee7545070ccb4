"""Built grammars are kept while there is room for their texts."""

from __future__ import annotations

from llguidance import LLMatcher, LLTokenizer
import pytest

from trioserve.grammar import matchers as module
from trioserve.grammar.compile import compile_structure
from trioserve.grammar.matchers import Matchers
from trioserve.types.structured import StructuredOutput

TEXT = compile_structure(StructuredOutput(kind="choice", choices=("xy",)))
# Blanks behind the JSON; 4 MiB are kept.
LONG, OTHER, HUGE = (TEXT + " " * num * 2**20 for num in (2, 1, 5))


@pytest.fixture
def matchers(guidance: LLTokenizer) -> Matchers:
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


def test_a_grammar_that_is_there_is_not_built_again(
    matchers: Matchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(matchers, TEXT)

    def fail(*args: object, **options: object) -> LLMatcher:
        raise RuntimeError("built again")

    monkeypatch.setattr(module, "LLMatcher", fail)
    build(matchers, TEXT)
    assert matchers.find(TEXT)
