"""Mixtures of experts, found among the modules of a decoder's layers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..choice import NotRecognised
from ..description import MixtureParts, MlpParts
from .products import check_linear, find_products, get_part

_NUM_TRIALS = 64


def find_mlp(mlp: nn.Module) -> MlpParts:
    """Find the parts of a feed-forward network.

    Raises:
      NotRecognised
    """
    return MlpParts(
        gate_up=find_products(mlp, ("gate_up_proj",), ("gate_proj", "up_proj")),
        down=check_linear(get_part(mlp, "down_proj"), "down_proj"),
    )


def find_mixture(mlp: nn.Module, hidden_size: int) -> MixtureParts | None:
    """Find the parts of a mixture; None if there are no experts.

    Raises:
      NotRecognised
    """
    experts: Any = getattr(mlp, "experts", None)
    if experts is None:
        return None
    others = {name for name, _ in mlp.named_children()} - {
        *("gate", "experts", "shared_expert", "shared_expert_gate"),
        "act_fn",
    }
    if others:
        raise NotRecognised(f"{type(mlp).__name__} has {', '.join(sorted(others))}")
    router = get_part(mlp, "gate")
    num_chosen, renormalizes = _find_rule(router)
    shared = getattr(mlp, "shared_expert", None)
    shared_gate = getattr(mlp, "shared_expert_gate", None)
    if shared_gate is not None:
        check_linear(shared_gate, "shared_expert_gate")
    found = MixtureParts(
        router=router.weight,
        experts=experts,
        num_chosen=num_chosen,
        renormalizes=renormalizes,
        shared=None if shared is None else find_mlp(shared),
        shared_gate=shared_gate,
    )
    _check_experts(found, hidden_size)
    return found


def list_activated(mlp: Any) -> list[Any]:
    """Return the modules of a feed-forward network or a mixture that have activations."""
    experts = getattr(mlp, "experts", None)
    shared = getattr(mlp, "shared_expert", None)
    if experts is None:
        return [mlp]
    return [experts] if shared is None else [experts, shared]


def _find_rule(router: nn.Module) -> tuple[int, bool]:
    """Return the number of experts that a router chooses, and whether it renormalizes.

    Raises:
      NotRecognised: it chooses by another rule than the largest of a softmax.
    """
    weight = getattr(router, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        raise NotRecognised(f"{type(router).__name__} has no weight of two dimensions")
    # In float32, whatever the type of the model.
    exact: Any = copy.deepcopy(router).float()
    states = torch.randn(
        (_NUM_TRIALS, weight.shape[1]), generator=torch.Generator().manual_seed(0)
    )
    output = exact(states)
    if not isinstance(output, tuple) or len(output) != 3:
        raise NotRecognised(f"{type(router).__name__} returns something else")
    _, actual, chosen = output
    if chosen.shape != actual.shape or chosen.shape[0] != _NUM_TRIALS:
        raise NotRecognised(f"{type(router).__name__} returns something else")
    shares = (states @ exact.weight.T).softmax(dim=-1)
    expected, best = shares.topk(chosen.shape[1], dim=-1)
    for renormalizes in (False, True):
        if renormalizes:
            expected = expected / expected.sum(dim=-1, keepdim=True)
        if torch.equal(chosen, best) and torch.allclose(actual, expected, atol=1e-5):
            return chosen.shape[1], renormalizes
    raise NotRecognised(f"{type(router).__name__} chooses experts by another rule")


def _check_experts(found: MixtureParts, hidden_size: int) -> None:
    """Refuse experts of unexpected shapes, because the kernels trust their pointers."""
    experts, name = found.experts, type(found.experts).__name__
    for part in ("gate_up_proj", "down_proj"):
        if not isinstance(getattr(experts, part, None), nn.Parameter):
            raise NotRecognised(f"{name} has no {part} of all experts")
    num_experts = len(found.router)
    size = found.intermediate_size
    if (
        {name for name, _ in experts.named_parameters()}
        != {"gate_up_proj", "down_proj"}
        or found.router.shape != (num_experts, hidden_size)
        or experts.gate_up_proj.shape != (num_experts, 2 * size, hidden_size)
        or experts.down_proj.shape != (num_experts, hidden_size, size)
        or experts.gate_up_proj.dtype != experts.down_proj.dtype
        # Weights of GGUF files are not the model's own.
        or experts.gate_up_proj.is_meta
        or not experts.gate_up_proj.is_contiguous()
        or not experts.down_proj.is_contiguous()
        or not 0 < found.num_chosen <= num_experts
    ):
        raise NotRecognised(f"{name} has weights of an unexpected shape or type")
    if found.shared is None and found.shared_gate is not None:
        raise NotRecognised(f"{name} has a gate for no expert")
