"""Mixtures of experts, found among the modules of a decoder's layers."""

from __future__ import annotations

from collections.abc import Callable
import copy
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from ..choice import NotRecognised
from ..description import MixtureParts, MlpParts
from .products import check_linear, find_products, get_part

_NUM_TRIALS = 64

# A mixture adds it to the weights of experts to choose some.
_CHOICE_BIAS = "expert_bias"

_ACTIVATIONS = "act_fn", "activation_fn", "activation"

# The products of the gate, of what it weighs, and of both.
_OTHER_NAMES = "w1", "w3", "w2"


def find_mlp(mlp: nn.Module) -> MlpParts:
    """Find the parts of a feed-forward network.

    Raises:
      NotRecognised
    """
    return MlpParts(
        gate_up=find_products(
            mlp,
            *(("gate_up_proj",), ("gate_proj", "up_proj")),
            *(("input_linear",), _OTHER_NAMES[:2]),
        ),
        down=check_linear(
            get_part(mlp, "down_proj", "output_linear", _OTHER_NAMES[2]), "down_proj"
        ),
    )


def find_mixture(
    mlp: nn.Module, hidden_size: int, shared: nn.Module | None = None
) -> MixtureParts | None:
    """Find the parts of a mixture; None if there are no experts.

    Args:
      shared: an expert for all tokens, if it is not part of the mixture.

    Raises:
      NotRecognised
    """
    experts: Any = getattr(mlp, "experts", None)
    if experts is None:
        return None
    others = {name for name, _ in mlp.named_children()} - {
        *("gate", "router", "experts", "shared_expert", "shared_expert_gate"),
        "act_fn",
    }
    if others:
        raise NotRecognised(f"{type(mlp).__name__} has {', '.join(sorted(others))}")
    if not {name for name, _ in mlp.named_buffers(recurse=False)} <= {_CHOICE_BIAS}:
        raise NotRecognised(f"{type(mlp).__name__} has buffers")
    router = get_part(mlp, "gate", "router")
    choice_bias = getattr(mlp, _CHOICE_BIAS, None)
    rule = _find_rule(router, choice_bias)
    shared = getattr(mlp, "shared_expert", shared)
    shared_gate = getattr(mlp, "shared_expert_gate", None)
    if shared_gate is not None:
        check_linear(shared_gate, "shared_expert_gate")
    found = MixtureParts(
        router=router.weight,
        experts=experts,
        num_chosen=rule.num_chosen,
        renormalizes=rule.renormalizes,
        has_sigmoid=rule.has_sigmoid,
        choice_bias=choice_bias,
        scale=rule.scale,
        shared=None if shared is None else find_mlp(shared),
        shared_gate=shared_gate,
    )
    check_experts(found, hidden_size)
    return found


def list_activations(mlp: Any) -> list[Callable[[Tensor], Tensor]]:
    """Return the activations of a feed-forward network, or of a mixture.

    Raises:
      NotRecognised
    """
    experts = getattr(mlp, "experts", None)
    shared = getattr(mlp, "shared_expert", None)
    modules = [mlp] if experts is None else [experts, *([shared] if shared else [])]
    return [_find_activation(module) for module in modules]


def _find_activation(module: Any) -> Callable[[Tensor], Tensor]:
    named = (getattr(module, name, None) for name in _ACTIVATIONS)
    function = next((each for each in named if callable(each)), None)
    if function is not None:
        found: Callable[[Tensor], Tensor] = function
        return found
    if not all(hasattr(module, name) for name in _OTHER_NAMES):
        raise NotRecognised(f"{type(module).__name__} has no activation")
    # Its code names the activation, so the code runs: with a gate of one number, which
    # weighs 1.
    copied = copy.copy(module)
    identity, one = nn.Identity(), nn.Linear(1, 1)
    nn.init.zeros_(one.weight)
    nn.init.ones_(one.bias)
    copied._modules = dict(zip(_OTHER_NAMES, (identity, one, identity)))
    return lambda points: torch.as_tensor(copied(points[:, None])[:, 0])


@dataclass(frozen=True, slots=True)
class _Rule:
    """The way in which a router chooses experts."""

    num_chosen: int
    has_sigmoid: bool
    renormalizes: bool
    scale: float

    def apply(
        self, scores: Tensor, choice_bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the weights and the places of the chosen experts of each token."""
        weights = scores.sigmoid() if self.has_sigmoid else scores.softmax(dim=-1)
        ranks = weights if choice_bias is None else weights + choice_bias
        chosen = ranks.topk(self.num_chosen, dim=-1).indices
        weights = weights.gather(-1, chosen)
        if self.renormalizes:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights * self.scale, chosen


def _find_rule(router: nn.Module, choice_bias: Tensor | None) -> _Rule:
    """Find the rule of a router by running it.

    Raises:
      NotRecognised: it chooses by an unknown rule.
    """
    weight = getattr(router, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        raise NotRecognised(f"{type(router).__name__} has no weight of two dimensions")
    # In float32, whatever the type of the model.
    exact: Any = copy.deepcopy(router).float()
    states = torch.randn(
        (_NUM_TRIALS, weight.shape[1]), generator=torch.Generator().manual_seed(0)
    )
    output = exact(states) if choice_bias is None else exact(states, choice_bias)
    if not isinstance(output, tuple) or len(output) != 3:
        raise NotRecognised(f"{type(router).__name__} returns something else")
    _, actual, chosen = output
    if chosen.shape != actual.shape or chosen.shape[0] != _NUM_TRIALS:
        raise NotRecognised(f"{type(router).__name__} returns something else")
    scale = float(getattr(router, "routed_scaling_factor", 1.0))
    for has_sigmoid, renormalizes in product((False, True), repeat=2):
        rule = _Rule(chosen.shape[1], has_sigmoid, renormalizes, scale)
        expected, best = rule.apply(states @ exact.weight.T, choice_bias)
        if torch.equal(chosen, best) and torch.allclose(actual, expected, atol=1e-5):
            return rule
    raise NotRecognised(f"{type(router).__name__} chooses experts by another rule")


def check_experts(found: MixtureParts, hidden_size: int) -> None:
    """Refuse experts of unexpected shapes, because the kernels trust their pointers.

    Raises:
      NotRecognised
    """
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
        or experts.gate_up_proj.is_meta
        or not 0 < found.num_chosen <= num_experts
    ):
        raise NotRecognised(f"{name} has weights of an unexpected shape or type")
    if found.shared is None and found.shared_gate is not None:
        raise NotRecognised(f"{name} has a gate for no expert")
