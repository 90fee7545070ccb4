"""Each backend states its limits, and the first one within them is chosen."""

from __future__ import annotations

import pytest
import torch

from trioserve.model.attention.choose import choose_encoder_backend
from trioserve.model.attention.flat import FlatAttention
from trioserve.model.attention.probe import LayerSpec, UnfitLayer


def make_layer(*, needs_scores: bool) -> LayerSpec:
    return LayerSpec(
        module_name="layer",
        num_heads=2,
        num_kv_heads=1,
        key_dim=4,
        value_dim=4,
        is_causal=False,
        window=None,
        scaling=1.0,
        softcap=30.0 if needs_scores else None,
    )


def test_an_encoder_gets_the_backend_that_supports_its_layers() -> None:
    layers = (make_layer(needs_scores=False),)
    backend = choose_encoder_backend(layers, torch.device("cpu"))
    assert isinstance(backend, FlatAttention)


def test_an_encoder_without_a_backend_is_refused() -> None:
    layers = make_layer(needs_scores=False), make_layer(needs_scores=True)
    with pytest.raises(UnfitLayer, match="no attention backend supports its layers"):
        choose_encoder_backend(layers, torch.device("cpu"))
