"""Modules with latents keep them, if they expand them by the formula that is absorbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

from trioserve.config import ModelConfig
from trioserve.model.attention.latents import LatentProjection
from trioserve.model.loading.load import load_model
from trioserve.testing.models import save_tiny_model


def load(folder: Path, **options: Any) -> Any:
    config = ModelConfig(device="cpu", kernels="torch", **options)
    return load_model(folder, config, name="tiny")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_cache_keeps_latents(tmp_path: Path, dtype: Any) -> None:
    save_tiny_model("deepseek_v3", tmp_path)
    model = load(tmp_path, dtype=dtype)
    assert all(layer.values_in_keys for layer in model.layers)
    sizes = {(each.num_kv_heads, each.key_dim, each.value_dim) for each in model.layers}
    assert sizes == {(1, 20, 16)}


def test_modules_that_expand_latents_in_another_way_keep_keys_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expand = DeepseekV3Attention.expand_kv

    def double_values(
        self: Any, latents: Tensor, shared: Tensor
    ) -> tuple[Tensor, Tensor]:
        keys, values = expand(self, latents, shared)
        return keys, 2 * values

    monkeypatch.setattr(DeepseekV3Attention, "expand_kv", double_values)
    save_tiny_model("deepseek_v3", tmp_path)
    model = load(tmp_path)
    sizes = {(each.num_kv_heads, each.key_dim, each.value_dim) for each in model.layers}
    assert sizes == {(4, 12, 12)} and not model.layers[0].values_in_keys


def test_products_are_absorbed() -> None:
    torch.manual_seed(0)
    projection = LatentProjection(torch.nn.Linear(16, 3 * (8 + 6), bias=False), 3, 8)
    query, shared = torch.randn(1, 3, 5, 8 + 4), torch.randn(7, 1, 4)
    latents, weights = torch.randn(7, 16), torch.rand(5, 3, 7)
    with torch.inference_mode():
        keys, values = projection.expand(latents)
        keys = torch.cat((keys, shared.expand(-1, 3, -1)), dim=-1)
        absorbed = projection.absorb_queries(query)[0]  # (3, 5, 16 + 4)
        kept = torch.cat((latents, shared[:, 0]), dim=-1)
        expected = torch.einsum("hqd,khd->qhk", query[0], keys)
        assert torch.allclose(
            torch.einsum("hqd,kd->qhk", absorbed, kept), expected, atol=1e-5
        )
        expected = torch.einsum("qhk,khd->qhd", weights, values)
        output = projection.expand_outputs(weights @ latents)
        assert torch.allclose(output, expected, atol=1e-5)
