"""llguidance's view of the tiny tokenizer, and matchers over it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer
import pytest
from tokenizers import Tokenizer

from trioserve.grammar.compile import compile_structure
from trioserve.grammar.limits import make_limits
from trioserve.grammar.matchers import make_tokenizer
from trioserve.types.structured import StructuredOutput

# The tiny tokenizer's <|im_end|>.
IM_END = 1
VOCAB_SIZE = 520

OpenMatcher = Callable[[StructuredOutput], LLMatcher]
Accepts = Callable[[StructuredOutput, str], bool]


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def guidance(tokenizer_folder: Path) -> LLTokenizer:
    """The tokenizer of a model that has a few more ids than the tokenizer has."""
    file = (tokenizer_folder / "tokenizer.json").read_text()
    return make_tokenizer(file, vocab_size=VOCAB_SIZE, eos_token_ids=[IM_END])


@pytest.fixture
def open_matcher(guidance: LLTokenizer) -> OpenMatcher:
    def open_(structure: StructuredOutput) -> LLMatcher:
        grammar = compile_structure(structure)
        matcher = LLMatcher(guidance, grammar, log_level=0, limits=make_limits())
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    return open_


@pytest.fixture
def accepts(open_matcher: OpenMatcher, guidance: LLTokenizer) -> Accepts:
    """Return a function that tells whether a text has a form from beginning to end."""

    def check(structure: StructuredOutput, text: str) -> bool:
        matcher = open_matcher(structure)
        token_ids = guidance.tokenize_str(text)
        num_read = matcher.try_consume_tokens(token_ids)
        return num_read == len(token_ids) and matcher.is_accepting()

    return check
