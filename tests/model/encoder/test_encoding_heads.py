"""Classifiers give the logits of transformers' own models, from pooled states."""

from __future__ import annotations

from array import array
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertTokenizer

from trioserve.config import ModelConfig
from trioserve.errors import UnsupportedModel, WeightsBroken
from trioserve.model.encoder import load_encoder
from trioserve.model.encoder.heads import find_activation
from trioserve.testing.encoders import save_tiny_encoder
from trioserve.types.pooling import PoolingInput

CPU = ModelConfig(device="cpu")

IDENTITY = "torch.nn.modules.linear.Identity"
SIGMOID = "torch.nn.modules.activation.Sigmoid"


@pytest.mark.parametrize(
    ("kind", "mode", "changes"),
    [
        ("bert", "cls", {}),
        ("roberta", "cls", {}),
        ("mpnet", "cls", {}),
        ("deberta-v2", "cls", {}),
        ("modernbert", "cls", {"classifier_pooling": "cls"}),
        ("modernbert", "mean", {"classifier_pooling": "mean"}),
        ("qwen3", "lasttoken", {"pad_token_id": None}),
        ("gemma3_text", "lasttoken", {}),
    ],
)
def test_texts(
    tiny_encoder: Any, make_input: Any, kind: str, mode: str, changes: Any
) -> None:
    tiny = tiny_encoder(kind, "sequence", **changes)
    assert tiny.loaded.task == "classify"
    assert tiny.loaded.head_mode == mode
    inputs = [make_input(length) for length in (12, 5, 40, 1)]
    logits = tiny.pool_by_head_mode(*inputs)
    expected = torch.cat([tiny.run_alone(item).logits for item in inputs])
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_tokens(tiny_encoder: Any, make_input: Any, kind: str) -> None:
    tiny = tiny_encoder(kind, "token")
    assert tiny.loaded.task == "token_classify"
    assert tiny.loaded.head_mode is None
    inputs = [make_input(length) for length in (12, 5, 40)]
    encoded = tiny.loaded.encode(inputs)
    logits = tiny.loaded.head(encoded.states)
    for item, (begin, end) in zip(inputs, encoded.spans, strict=True):
        expected = tiny.run_alone(item).logits[0]
        torch.testing.assert_close(logits[begin:end], expected, atol=1e-5, rtol=1e-5)


def test_pairs_of_a_cross_encoder(tmp_path: Path) -> None:
    """sentence-transformers gives the same scores."""
    from sentence_transformers import CrossEncoder

    save_tiny_encoder("bert", tmp_path, head="sequence", num_labels=1)
    save_letter_tokenizer(tmp_path)
    loaded = load_encoder(tmp_path, CPU, name="x", task="classify", sentence=None)
    assert loaded.activation == "sigmoid" and loaded.labels == ("LABEL_0",)
    theirs = CrossEncoder(str(tmp_path), device="cpu", local_files_only=True)
    pairs = [("who waited", "the server never waited"), ("who waited", "paris")]
    batch = theirs.tokenizer([query for query, _ in pairs], [text for _, text in pairs])
    inputs = [
        PoolingInput(token_ids=array("i", ids), second_begin=types.index(1))
        for ids, types in zip(batch["input_ids"], batch["token_type_ids"], strict=True)
    ]
    encoded = loaded.encode(inputs)
    rows = torch.stack([encoded.states[begin] for begin, _ in encoded.spans])
    assert loaded.head is not None
    scores = torch.sigmoid(loaded.head(rows))[:, 0]
    expected = torch.tensor(theirs.predict(pairs, show_progress_bar=False))
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)


def save_letter_tokenizer(folder: Path) -> None:
    """Save a tokenizer of BERT's kind whose words are letters."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    words += [f"##{letter}" for letter in letters]
    vocabulary = {word: index for index, word in enumerate(words)}
    BertTokenizer(vocab=vocabulary).save_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "described", "activation"),
    [
        ({"num_labels": 3}, {}, "softmax"),
        ({"num_labels": 1}, {}, "sigmoid"),
        ({"problem_type": "multi_label_classification"}, {}, "sigmoid"),
        (
            {"num_labels": 1, "sentence_transformers": {"activation_fn": IDENTITY}},
            {},
            "none",
        ),
        (
            {"num_labels": 1, "sbert_ce_default_activation_function": IDENTITY},
            {},
            "none",
        ),
        ({"num_labels": 1}, {"activation_fn": IDENTITY}, "none"),
        ({"num_labels": 1}, {"activation_fn": SIGMOID}, "sigmoid"),
        # sentence-transformers writes Identity for several labels, whatever they mean.
        ({"num_labels": 3}, {"activation_fn": IDENTITY}, "softmax"),
        ({"num_labels": 3}, {"activation_fn": SIGMOID}, "sigmoid"),
    ],
)
def test_activations(
    tmp_path: Path, changes: Any, described: Any, activation: str
) -> None:
    if described:
        path = tmp_path / "config_sentence_transformers.json"
        path.write_text(json.dumps(described))
    assert find_activation(BertConfig(**changes), tmp_path) == activation


def test_activations_of_other_kinds_are_refused(tmp_path: Path) -> None:
    named = {"activation_fn": "torch.nn.modules.activation.Tanh"}
    config = BertConfig(num_labels=1, sentence_transformers=named)
    with pytest.raises(
        UnsupportedModel, match="its activation function Tanh is not supported"
    ):
        find_activation(config, tmp_path)


def test_broken_settings_are_named(tmp_path: Path) -> None:
    (tmp_path / "config_sentence_transformers.json").write_text("[")
    with pytest.raises(WeightsBroken, match="config_sentence_transformers.json"):
        find_activation(BertConfig(num_labels=1), tmp_path)


def test_labels_have_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = {index: f"number {index}" for index in range(12)}
    save_tiny_encoder("bert", tmp_path, head="sequence", id2label=names, num_labels=12)
    loaded = load_encoder(tmp_path, CPU, name="x", task="classify", sentence=None)
    assert loaded.labels == tuple(names.values())
