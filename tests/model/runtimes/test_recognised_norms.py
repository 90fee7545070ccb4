"""Norms without weights are found wherever the other weights of a model are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trioserve.model.attention.probe import LayerSpec
from trioserve.model.runtimes.recognise.attention import find_attention
from trioserve.model.runtimes.recognise.beside import find_beside
from trioserve.model.runtimes.recognise.given import Angles

# Stands in for a GPU.
DEVICE = torch.device("meta")

CALL = LayerSpec(
    module_name="self_attn",
    num_heads=1,
    num_kv_heads=1,
    key_dim=8,
    value_dim=8,
    is_causal=True,
    window=None,
    scaling=1.0,
)


class Ran(Exception):
    pass


class Norm(nn.Module):
    eps = 1e-6

    def forward(self, states: Tensor) -> Tensor:
        raise Ran(states.device.type)


def test_the_norm_of_values_is_run_where_the_angles_are() -> None:
    attention = nn.Module()
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(attention, name, nn.Linear(8, 8, bias=False, device=DEVICE))
    attention.v_norm = Norm()
    numbers = torch.empty(4, 8, device=DEVICE)
    angles = Angles(cos=numbers, sin=numbers)
    with pytest.raises(Ran, match="meta"):
        find_attention(attention, CALL, angles)


def test_the_norm_of_a_router_is_run_where_its_factors_are() -> None:
    layer: Any = nn.Module()
    layer.router = nn.Module()
    layer.router.scale = nn.Parameter(torch.empty(8, device=DEVICE))
    layer.router.scalar_root_size = 8**-0.5
    layer.router.norm = Norm()
    network: Any = None
    with pytest.raises(Ran, match="meta"):
        find_beside(layer, network, hidden_size=8)
