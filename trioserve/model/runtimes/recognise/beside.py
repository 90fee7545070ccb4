"""Mixtures of experts beside feed-forward networks, found among the modules of layers.

Source: Gemma4TextDecoderLayer in transformers/models/gemma4/modeling_gemma4.py.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..choice import NotRecognised
from ..description import BesideParts, MixtureParts, MlpParts
from .experts import check_experts
from .formulas import find_norm
from .products import check_linear, get_part

_NUM_TRIALS = 64


def find_beside(layer: Any, network: MlpParts, hidden_size: int) -> BesideParts | None:
    """Find the parts of the mixture beside a layer's network; None if it has none.

    Raises:
      NotRecognised
    """
    if not hasattr(layer, "router"):
        return None
    router = layer.router
    scale = get_part(router, "scale").float() * get_part(router, "scalar_root_size")
    router_norm = find_norm(get_part(router, "norm"), hidden_size, scale.device) * scale
    mixture = MixtureParts(
        router=check_linear(get_part(router, "proj"), "proj").weight,
        experts=get_part(layer, "experts"),
        num_chosen=_find_num_chosen(router, router_norm),
        renormalizes=True,
        expert_scales=get_part(router, "per_expert_scale"),
    )
    check_experts(mixture, hidden_size)
    norm = "post_feedforward_layernorm"
    return BesideParts(
        network=network,
        mixture=mixture,
        router_norm=router_norm,
        input_norm=find_norm(get_part(layer, "pre_feedforward_layernorm_2")),
        output_norm=find_norm(get_part(layer, f"{norm}_2")),
        network_norm=find_norm(get_part(layer, f"{norm}_1")),
    )


@torch.inference_mode()
def _find_num_chosen(router: nn.Module, norm: Tensor) -> int:
    """Return the number of experts that a router chooses.

    Raises:
      NotRecognised: it chooses by another rule than the one that is written out here.
    """
    # In float32, whatever the type of the model.
    exact: Any = copy.deepcopy(router).float()
    chance = torch.Generator().manual_seed(0)
    states = torch.randn((_NUM_TRIALS, len(norm)), generator=chance).to(norm.device)
    # The rule does not depend on the weights, which may have no memory yet.
    exact.proj = nn.Linear(len(norm), exact.proj.out_features, bias=False)
    nn.init.normal_(exact.proj.weight, std=len(norm) ** -0.5, generator=chance)
    exact.proj.to(norm.device)
    _, actual, chosen = exact(states)
    shares = exact.proj(exact.norm(states) * norm.detach()).softmax(dim=-1)
    expected, best = shares.topk(chosen.shape[1], dim=-1)
    expected = expected / expected.sum(dim=-1, keepdim=True)
    expected = expected * exact.per_expert_scale[best]
    if not torch.equal(chosen, best) or not torch.allclose(actual, expected, atol=1e-5):
        raise NotRecognised(f"{type(router).__name__} chooses experts by another rule")
    return int(chosen.shape[1])
