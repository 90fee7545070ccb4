"""A text that is too long, or is cut, is tokenized no further than necessary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest
from tokenizers import Encoding, Tokenizer

from trioserve.errors import ContextLengthExceeded
from trioserve.render import TokenizeOptions
from trioserve.render.text.pieces import DOUBTED_TOKENS, count_at_least
from trioserve.render.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from conftest import Subject

LIMIT = 256


class CountingTokenizer:
    """A tokenizer that counts the characters that it has read."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.num_characters = 0
        self._tokenizer = tokenizer

    def encode_batch_fast(self, texts: list[str], **options: bool) -> list[Encoding]:
        self.num_characters += sum(map(len, texts))
        return list(self._tokenizer.encode_batch_fast(texts, **options))

    def decode_batch(self, ids: list[list[int]], **options: bool) -> list[str]:
        return list(self._tokenizer.decode_batch(ids, **options))


@pytest.fixture
def backend(byte_level: Subject) -> CountingTokenizer:
    return CountingTokenizer(byte_level.oracle)


@pytest.fixture
def tokenizer(byte_level: Subject, backend: CountingTokenizer) -> TextTokenizer:
    return TextTokenizer(
        cast(Tokenizer, backend), byte_level.renderer.vocabulary, max_model_len=LIMIT
    )


@pytest.fixture
def longest(byte_level: Subject) -> int:
    """The number of characters of the longest text that could be short enough."""
    return byte_level.renderer.vocabulary.longest_token * (LIMIT - 1)


@pytest.mark.parametrize("truncate_to", [None, LIMIT])
def test_a_text_that_is_too_long_is_refused_after_its_first_piece(
    tokenizer: TextTokenizer,
    backend: CountingTokenizer,
    longest: int,
    truncate_to: int | None,
) -> None:
    """A text that is cut to LIMIT tokens is too long, as well."""
    options = TokenizeOptions(truncate_to=truncate_to)
    with pytest.raises(ContextLengthExceeded, match="at least") as caught:
        tokenizer.make_prompt("7" * longest, options, param="prompt")
    assert caught.value.param == "prompt"
    assert caught.value.num_tokens >= LIMIT
    assert backend.num_characters < 3 * LIMIT < longest


def test_parts_that_are_too_long_together_are_refused_after_the_first_of_them(
    tokenizer: TextTokenizer, backend: CountingTokenizer
) -> None:
    parts = ["7" * (LIMIT // 2)] * 16
    with pytest.raises(ContextLengthExceeded, match="at least"):
        tokenizer.encode_parts(parts, True, param="messages")
    assert backend.num_characters == LIMIT


@pytest.mark.parametrize("side", ["left", "right"])
def test_of_a_text_that_is_cut_no_more_is_read_than_may_count(
    tokenizer: TextTokenizer, backend: CountingTokenizer, side: Literal["left", "right"]
) -> None:
    options = TokenizeOptions(truncate_to=5, truncation_side=side)
    prompt = tokenizer.make_prompt("7" * 10**6, options, param="prompt")
    assert (len(prompt.token_ids), prompt.text) == (5, "77777")
    assert backend.num_characters < 1000


FRAGMENTS = [
    "a",
    "the dog ",
    " ",
    "\n",
    "7",
    "Zwölf ",
    "你好",
    "🙂",
    "=-",
    "ing",
    "  x",
]
# Texts have more characters than a cut costs tokens.
SIZES = st.integers(2 * DOUBTED_TOKENS, 4 * DOUBTED_TOKENS)
KINDS = ["wordpiece", "roberta", "qwen", "unigram", "byte_level", "sentencepiece"]


@pytest.fixture(scope="module")
def backends(pooling_folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {
        kind: Tokenizer.from_file(str(folder / "tokenizer.json"))
        for kind, folder in pooling_folders.items()
    }


@settings(max_examples=examples(60))
@given(
    runs=st.lists(
        st.tuples(st.sampled_from(FRAGMENTS), st.integers(1, 600)), min_size=1
    ),
    size=SIZES,
    kind=st.sampled_from(KINDS),
)
def test_a_text_has_never_fewer_tokens_than_were_counted_in_pieces(
    backends: dict[str, Tokenizer], runs: list[tuple[str, int]], size: int, kind: str
) -> None:
    text = "".join(fragment * times for fragment, times in runs)
    [whole] = backends[kind].encode_batch_fast([text], add_special_tokens=False)
    num_tokens = count_at_least(backends[kind], [text], len(text), size=size)
    assert num_tokens <= len(whole)
