"""Inputs that run together get the states of transformers for each of them alone."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest
import torch

from trioserve.config import ModelConfig
from trioserve.model.encoder import load_encoder
from trioserve.model.encoder.flat import FlatPass
from trioserve.types.pooling import PoolingInput

FLAT = (
    *("bert", "electra", "distilbert", "albert", "roberta", "xlm-roberta", "camembert"),
    *("modernbert", "llama", "mistral", "gemma3_text"),
)
PADDED = ("mpnet", "deberta-v2")
CAUSAL = ("llama", "mistral")
NATIVE = ("bert", "electra", "distilbert", "roberta", "xlm-roberta", "camembert")
# They have RoBERTa's layers.
SIMILAR = ("xlm-roberta", "camembert")
# By default the modules of one of the kinds with native kernels run.
MATRIX = {(kind, kernels) for kind in SIMILAR for kernels in ("torch", "native")}
MATRIX |= {(kind, "torch") for kind in NATIVE if kind != "bert"}
WINDOWED = ("modernbert", "mistral", "gemma3_text")
SIZES = {"hidden_size": 128, "intermediate_size": 256}


@pytest.fixture(
    params=[
        pytest.param(
            (kind, kernels),
            id=f"{kind}-{kernels}",
            marks=pytest.mark.matrix if (kind, kernels) in MATRIX else (),
        )
        for kernels, kinds in (("torch", FLAT + PADDED), ("native", NATIVE))
        for kind in kinds
    ],
)
def any_encoder(request: pytest.FixtureRequest, tiny_encoder: Any) -> tuple[str, Any]:
    """A kind of encoder, and an encoder on the kernels that can run it."""
    kind, kernels = request.param
    if kernels == "native":
        request.getfixturevalue("needs_kernels")
    changes: Any = {"max_position_embeddings": 512} if kind in WINDOWED else {}
    if kind in NATIVE and kernels == "torch":
        changes["kernels"] = kernels
    tiny = tiny_encoder(kind, **changes)
    assert tiny.loaded.info.kernels.startswith(kernels)
    return kind, tiny


def test_mixed_lengths(any_encoder: tuple[str, Any], make_input: Any) -> None:
    """Lengths come in any order; some are equal, and one is a single token."""
    kind, tiny = any_encoder
    lengths = (17, 3, 40, 1, 17, 9, 128, 3, 41)
    tiny.check_states(
        *(make_input(length, seed=seed) for seed, length in enumerate(lengths))
    )
    tiny.check_states(make_input(1))
    assert tiny.loaded.is_causal == (kind in CAUSAL)
    if tiny.loaded.info.kernels == "torch":
        # Only models with attention of their own are padded.
        assert isinstance(tiny.loaded.forward, FlatPass) == (kind in FLAT)


def test_unseen_tokens(any_encoder: tuple[str, Any], make_input: Any) -> None:
    """They see the other tokens, and no token sees them."""
    kind, tiny = any_encoder
    if kind == "deberta-v2":
        pytest.skip("its code in transformers gives masked tokens no keys at all")
    if kind in NATIVE:
        tiny.check_states(make_input(90, num_unseen=50), make_input(7, num_unseen=6))
    tiny.check_states(
        make_input(12),
        make_input(12, seed=1, num_unseen=4),
        make_input(12, seed=2, num_unseen=4),
        # Few enough that no window holds only unseen tokens.
        make_input(31, num_unseen=3),
        make_input(7, num_unseen=1),
    )


@pytest.mark.parametrize("kind", ["bert", "electra", "albert"])
def test_pairs(tiny_encoder: Any, make_input: Any, kind: str) -> None:
    tiny = tiny_encoder(kind)
    assert tiny.loaded.type_ids
    pair = make_input(12, seed=1, second_begin=5)
    tiny.check_states(make_input(12), pair, make_input(12, seed=1))
    pairs = [pair, replace(pair, second_begin=0)]
    encoded = tiny.loaded.encode(pairs)
    assert not torch.allclose(encoded.states[:12], encoded.states[12:])


@pytest.mark.parametrize("kind", ["distilbert", "roberta", "modernbert", "mpnet"])
def test_models_without_pairs(tiny_encoder: Any, make_input: Any, kind: str) -> None:
    """They ignore the beginning of the second text."""
    tiny = tiny_encoder(kind)
    assert not tiny.loaded.type_ids
    pair = make_input(12, second_begin=5)
    alone = replace(pair, second_begin=0)
    encoded = tiny.loaded.encode([pair, alone])
    torch.testing.assert_close(encoded.states[:12], encoded.states[12:])


def test_pairs_in_rectangles(tiny_encoder: Any, make_input: Any) -> None:
    tiny = tiny_encoder("deberta-v2", type_vocab_size=2)
    assert tiny.loaded.type_ids
    tiny.check_states(make_input(12, second_begin=5), make_input(11, second_begin=3))


@pytest.mark.parametrize("kind", ["roberta", "mpnet"])
def test_padding_tokens_in_a_text(tiny_encoder: Any, kind: str) -> None:
    """They have no position. A text contains one only if it spells the token."""
    tiny_encoder(kind).check_states(
        PoolingInput(token_ids=array("i", [1, 9, 10])),
        PoolingInput(token_ids=array("i", [9, 10, 1, 11, 1, 12])),
        PoolingInput(token_ids=array("i", [20, 21, 22, 23])),
    )


def test_decoders_that_look_both_ways(tiny_encoder: Any, make_input: Any) -> None:
    """A configuration may turn a decoder's causality off."""
    tiny = tiny_encoder("llama", is_causal=False)
    assert not tiny.loaded.is_causal
    tiny.check_states(make_input(12), make_input(5))


def test_windows_of_many_blocks(tiny_encoder: Any, make_input: Any) -> None:
    for kind in WINDOWED:
        tiny = tiny_encoder(kind, max_position_embeddings=512)
        tiny.check_states(
            make_input(300), make_input(300, seed=1), make_input(257, num_unseen=2)
        )


def test_wide_windows_are_not_tried(tiny_encoder: Any, make_input: Any) -> None:
    """Their states are right all the same."""
    tiny = tiny_encoder("mistral", sliding_window=140, max_position_embeddings=512)
    tiny.check_states(make_input(300), make_input(150))


def test_large_batches_of_padded_models(tiny_encoder: Any, make_input: Any) -> None:
    """A group ends before it has too much padding or too many pairs of tokens."""
    tiny = tiny_encoder("mpnet")
    tiny.check_states(*(make_input(length, seed=length) for length in range(1, 128, 5)))


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_products_are_packed(tiny_encoder: Any, make_input: Any, kind: str) -> None:
    """Packed weights give the same states."""
    tiny = tiny_encoder(kind, kernels="torch", **SIZES)
    packed = [m for m in tiny.loaded.forward._model.modules() if hasattr(m, "_packed")]
    assert len(packed) == 12
    tiny.check_states(make_input(12), make_input(40), make_input(12, seed=1))


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_half_the_bits(tiny_encoder: Any, make_input: Any, kind: str) -> None:
    tiny = tiny_encoder(kind, kernels="torch", **SIZES)
    config = ModelConfig(device="cpu", dtype="bfloat16")
    loaded = load_encoder(tiny.folder, config, name="x", task="embed", sentence=None)
    assert loaded.dtype == torch.bfloat16 and loaded.info.dtype == "bfloat16"
    item = make_input(20)
    expected = tiny.run_alone(item).last_hidden_state[0]
    error = (loaded.encode([item]).states.float() - expected).norm()
    assert error < 0.05 * expected.norm()


def test_models_that_cap_attention_scores(tiny_encoder: Any, make_input: Any) -> None:
    """Fused attention cannot cap scores, so such models run in padded batches."""
    tiny = tiny_encoder("gemma2")
    tiny.check_states(make_input(12), make_input(30), make_input(12, num_unseen=2))
