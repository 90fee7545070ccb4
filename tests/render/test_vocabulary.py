"""The bytes of tokens, for logprobs and for texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from trioserve.render.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from conftest import Subject


def test_a_token_with_half_a_character_has_its_true_bytes(subject: Subject) -> None:
    renderer = subject.renderer
    smile = subject.encode("🙂")[-4:]
    assert [renderer.token_bytes(i) for i in smile] == [
        b"\xf0",
        b"\x9f",
        b"\x99",
        b"\x82",
    ]


def test_a_tokens_leading_space_is_part_of_it(subject: Subject) -> None:
    renderer = subject.renderer
    token_ids = subject.encode("x the dog")[-2:]
    assert [renderer.token_bytes(i) for i in token_ids] == [b" the", b" dog"]
    # Its text is the tokenizer's own spelling.
    assert {renderer.token_text(i)[0] for i in token_ids} <= {"Ġ", "\u2581"}


def test_a_special_token_is_named(subject: Subject) -> None:
    names = {
        subject.renderer.token_text(token_id)
        for token_id in subject.renderer.vocabulary.special_token_ids
    }
    assert names in ({"<|im_start|>", "<|im_end|>"}, {"<unk>", "<s>", "</s>"})


def test_an_id_without_a_token_has_no_bytes(subject: Subject) -> None:
    vocabulary = subject.renderer.vocabulary
    assert vocabulary.token_bytes(vocabulary.size) == b""


def test_an_added_token_is_spelt_as_the_decoder_spells_it(subject: Subject) -> None:
    tokenizer = Tokenizer.from_str(subject.oracle.to_str())
    tokenizer.add_tokens([AddedToken("｜fin▁de▁phrase｜"), AddedToken("naïve Ġ")])
    vocabulary = Vocabulary(tokenizer)
    for token_id in (vocabulary.size - 2, vocabulary.size - 1):
        # Another token comes first, because a text may lose its first space.
        decoded = tokenizer.decode([subject.encode("x")[-1], token_id])
        expected = decoded.removeprefix("x")
        assert vocabulary.token_bytes(token_id).decode(errors="replace") == expected


WORDS = {"hello": 0, "##lo": 1, "world": 2, "a": 3, "!": 4, "[UNK]": 5}


def test_word_pieces_join_too() -> None:
    tokenizer = Tokenizer(models.WordPiece(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    vocabulary = Vocabulary(tokenizer)
    assert vocabulary.joins_as_decoded()
    text = vocabulary.join([2, 0, 1, 4], skip_special_tokens=True)
    assert text == b" world hellolo!"


@pytest.mark.parametrize("decoder", [decoders.CTC(), decoders.BPEDecoder()])
def test_a_decoder_that_looks_at_neighbours_is_noticed(
    decoder: decoders.Decoder,
) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoder
    trainer = trainers.BpeTrainer(end_of_word_suffix="</w>", show_progress=False)
    tokenizer.train_from_iterator(["a Hello, world!"], trainer)
    assert not Vocabulary(tokenizer).joins_as_decoded()
