"""Long texts have the same tokens in pieces as in whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from examples import examples
from hypothesis import HealthCheck, given, settings, strategies as st
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from trioserve.render.pooling.dividing import Divider

if TYPE_CHECKING:
    from trioserve.render.pooling.texts import Side

_PARTS = [
    *("token", "embeddings", "x", "x", "Ü", "é", "e\u0301", "12", "345", "_", "@"),
    *(" ", " ", " ", "  ", "\n", " \n ", "\r\n", "\t", "\u00a0", "\u3000", "\u2581"),
    *(", ", ". ", "'s", "'", "!", "-", "#", "(", ")", '"', "...", "don't", "1,000.5"),
    *("你好", "世界", "。", "，", "！", "こんにちは", "мир", "ｱ", "ﬁ", "½", "\u0308"),
    *("[SEP]", "<s>", "</s>", "<mask>", "<|im_end|>", "🙂", "\u200d", "\u00ad"),
]
texts = st.lists(st.sampled_from(_PARTS), max_size=120).map("".join)


@pytest.fixture(scope="module")
def tokenizers(pooling_folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {kind: load(folder) for kind, folder in pooling_folders.items()}


def load(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", ["wordpiece", "roberta", "qwen", "unigram"])
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=texts, side=st.sampled_from(["left", "right"]), size=st.integers(1, 40))
def test_pieces_have_the_tokens_of_the_whole(
    tokenizers: dict[str, Tokenizer], kind: str, text: str, side: Side, size: int
) -> None:
    tokenizer = tokenizers[kind]
    pieces = sorted(Divider(tokenizer).divide(text, size, side))
    assert "".join(piece for _, piece in pieces) == text
    assert all(text.startswith(piece, begin) for begin, piece in pieces)
    ids = [i for _, piece in pieces for i in encode(tokenizer, piece)]
    assert ids == encode(tokenizer, text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((kind, "the fox " * 500) for kind in ("wordpiece", "roberta", "qwen")),
        ("unigram", "the fox " * 500),
        *((kind, "你好世界。" * 800) for kind in ("wordpiece", "roberta", "qwen")),
        *((kind, "你好。世界。\n" * 600) for kind in ("wordpiece", "unigram")),
    ],
)
def test_texts_with_words_are_divided_into_pieces_of_the_size(
    tokenizers: dict[str, Tokenizer], kind: str, text: str
) -> None:
    for side in ("left", "right"):
        pieces = list(Divider(tokenizers[kind]).divide(text, 100, side))
        assert len(pieces) > 30, side
        assert all(100 <= len(piece) < 110 for _, piece in pieces[:-1]), side
        assert (pieces[0][0] == 0) == (side == "right")


def make_phrases(tokenizer: Tokenizer) -> None:
    tokenizer.add_tokens(["the fox"])


def make_greedy(tokenizer: Tokenizer) -> None:
    tokenizer.add_tokens([AddedToken("end", rstrip=True)])


def make_paragraphs(tokenizer: Tokenizer) -> None:
    """Split like tokenizers that have a full stop with a line end as one token."""
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^ ] *\n+"), "isolated")


def make_prepending(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Prepend("x")


@pytest.mark.parametrize(
    "change", [make_phrases, make_greedy, make_paragraphs, make_prepending]
)
def test_tokenizers_that_look_beyond_words_read_texts_as_a_whole(
    wordpiece_folder: Path, change: object
) -> None:
    tokenizer = load(wordpiece_folder)
    assert callable(change)
    change(tokenizer)
    text = "the fox " * 500
    assert list(Divider(tokenizer).divide(text, 100, "right")) == [(0, text)]


def test_a_tokenizer_without_words_reads_texts_as_a_whole(
    tokenizers: dict[str, Tokenizer],
) -> None:
    text = "the fox " * 500
    pieces = Divider(tokenizers["sentencepiece"]).divide(text, 100, "left")
    assert list(pieces) == [(0, text)]
