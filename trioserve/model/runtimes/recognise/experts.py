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
from ..description import ClampedGate, MixtureParts, MlpParts
from .products import check_linear, find_products, get_part

_NUM_TRIALS = 64

# A mixture adds it to the weights of experts to choose some.
_CHOICE_BIAS = "expert_bias"

# Products before and behind the experts, which read and write fewer numbers.
_LATENTS = "fc1_latent_proj", "fc2_latent_proj"

# kMaxGroups of native/experts.h.
_MAX_GROUPS = 64

_ACTIVATIONS = "act_fn", "activation_fn", "activation"

# The products of the gate, of what it weighs, and of both.
_OTHER_NAMES = "w1", "w3", "w2"


def find_mlp(mlp: nn.Module) -> MlpParts:
    """Find the parts of a feed-forward network.

    Raises:
      NotRecognised
    """
    output = get_part(mlp, "down_proj", "output_linear", _OTHER_NAMES[2])
    inputs = find_products(
        mlp,
        *(("gate_up_proj",), ("gate_proj", "up_proj")),
        *(("input_linear",), _OTHER_NAMES[:2], ("up_proj",)),
    )
    output = check_linear(output, "down_proj")
    others = {
        name
        for name, child in mlp.named_children()
        if child not in (*inputs, output) and any(True for _ in child.parameters())
    }
    if others:
        raise NotRecognised(f"{type(mlp).__name__} has {', '.join(sorted(others))}")
    num_inner = sum(product.out_features for product in inputs)
    return MlpParts(
        inputs=inputs,
        has_gate=num_inner != output.in_features,
        gate_scale=float(getattr(mlp, "gate_multiplier", 1.0)),
        output=output,
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
        *("shared_experts", "act_fn", *_LATENTS),
    }
    if others:
        raise NotRecognised(f"{type(mlp).__name__} has {', '.join(sorted(others))}")
    if not {name for name, _ in mlp.named_buffers(recurse=False)} <= {_CHOICE_BIAS}:
        raise NotRecognised(f"{type(mlp).__name__} has buffers")
    router = get_part(mlp, "gate", "router")
    choice_bias = getattr(mlp, _CHOICE_BIAS, None)
    rule = _find_rule(router, choice_bias)
    shared = _get_shared(mlp) or shared
    shared_gate = getattr(mlp, "shared_expert_gate", None)
    latent = _find_latent(mlp)
    if shared_gate is not None:
        check_linear(shared_gate, "shared_expert_gate")
    found = MixtureParts(
        router=router.weight,
        experts=experts,
        num_chosen=rule.num_chosen,
        renormalizes=rule.renormalizes,
        num_groups=rule.num_groups,
        num_chosen_groups=rule.num_chosen_groups,
        num_ranked=rule.num_ranked,
        has_sigmoid=rule.has_sigmoid,
        choice_bias=_get_bias(router, choice_bias),
        router_bias=_get_router_bias(router),
        clamp=_find_clamp(experts),
        scale=rule.scale,
        shared=None if shared is None else find_mlp(shared),
        shared_gate=shared_gate,
        inputs=latent[:1],
        output=latent[1] if latent else None,
    )
    check_experts(found, latent[0].out_features if latent else hidden_size)
    return found


def _find_latent(mlp: Any) -> tuple[nn.Linear, ...]:
    """Return the products before and behind the experts, if there are some."""
    found = [getattr(mlp, name, nn.Identity()) for name in _LATENTS]
    if all(type(each) is nn.Identity for each in found):
        return ()
    return tuple(map(check_linear, found, _LATENTS))


def _get_shared(mlp: Any) -> nn.Module | None:
    """Return the expert for all tokens, if it is part of a mixture."""
    named = (getattr(mlp, name, None) for name in ("shared_expert", "shared_experts"))
    return next((each for each in named if each is not None), None)


def _get_bias(router: Any, choice_bias: Tensor | None) -> Tensor | None:
    """Return the bias by which experts are chosen: given, or the router's own."""
    own: Tensor | None = getattr(router, "e_score_correction_bias", None)
    return own if choice_bias is None else choice_bias


def _get_router_bias(router: Any) -> Tensor | None:
    """Return the bias of a router's scores."""
    bias = getattr(router, "bias", None)
    return bias if isinstance(bias, Tensor) else None


def _find_clamp(experts: Any) -> ClampedGate | None:
    """Return the activation of clamped gates; None if the experts have another one.

    Raises:
      NotRecognised: they clamp gates by another rule.
    """
    slope, limit = getattr(experts, "alpha", None), getattr(experts, "limit", None)
    if slope is None or limit is None:
        return None
    gates, numbers = torch.linspace(-2 * limit, 2 * limit, 2 * 17**2).chunk(2)
    # Each gate beside each number.
    gates, numbers = gates[::17].repeat(17), numbers[::17].repeat_interleave(17)
    is_interleaved = not getattr(experts, "is_concatenated", True)
    both = torch.stack((gates, numbers), dim=-1).flatten()
    actual = experts._apply_gate(
        both if is_interleaved else torch.cat((gates, numbers))
    )
    gates = gates.clamp(max=limit)
    numbers = numbers.clamp(-limit, limit)
    expected = (numbers + 1) * gates * torch.sigmoid(slope * gates)
    if not torch.allclose(actual, expected, rtol=0, atol=1e-5):
        raise NotRecognised(f"{type(experts).__name__} clamps gates by another rule")
    return ClampedGate(slope=float(slope), limit=float(limit))


def list_activations(mlp: Any) -> list[Callable[[Tensor], Tensor]]:
    """Return the activations of a feed-forward network, or of a mixture.

    Raises:
      NotRecognised
    """
    experts = getattr(mlp, "experts", None)
    shared = _get_shared(mlp)
    modules = [mlp] if experts is None else [experts, *([shared] if shared else [])]
    modules = [each for each in modules if _find_clamp(each) is None]
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
    num_groups: int = 1
    num_chosen_groups: int = 1
    num_ranked: int = 1

    def apply(
        self, scores: Tensor, choice_bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the weights and the places of the chosen experts of each token, in order."""
        weights = scores.sigmoid() if self.has_sigmoid else scores.softmax(dim=-1)
        ranks = weights if choice_bias is None else weights + choice_bias
        if self.num_groups != self.num_chosen_groups:
            ranks = ranks.masked_fill(~self._open_groups(ranks), -torch.inf)
        chosen = ranks.topk(self.num_chosen, dim=-1).indices.sort(dim=-1).values
        weights = weights.gather(-1, chosen)
        if self.renormalizes:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights * self.scale, chosen

    def _open_groups(self, ranks: Tensor) -> Tensor:
        """Return whether experts are in the best groups."""
        groups = ranks.unflatten(-1, (self.num_groups, -1))
        strengths = groups.topk(self.num_ranked, dim=-1).values.sum(dim=-1)
        best = strengths.topk(self.num_chosen_groups, dim=-1).indices
        is_open = torch.zeros_like(strengths, dtype=torch.bool).scatter(-1, best, True)
        return is_open.repeat_interleave(groups.shape[-1], dim=-1)


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
    chance = torch.Generator().manual_seed(0)
    states = torch.randn((_NUM_TRIALS, weight.shape[1]), generator=chance)
    states = states.to(weight.device)
    # Larger scores would give most experts a share of 0, and the order of those is of chance.
    states /= (states @ exact.weight.T).std().clamp_min(1.0)
    output = exact(states) if choice_bias is None else exact(states, choice_bias)
    if not isinstance(output, tuple) or len(output) != 3:
        raise NotRecognised(f"{type(router).__name__} returns something else")
    _, actual, chosen = output
    if chosen.shape != actual.shape or chosen.shape[0] != _NUM_TRIALS:
        raise NotRecognised(f"{type(router).__name__} returns something else")
    chosen, order = chosen.sort(dim=-1)
    actual = actual.gather(-1, order)
    bias = _get_bias(exact, choice_bias)
    scale = float(getattr(router, "routed_scaling_factor", 1.0))
    router_bias = _get_router_bias(exact)
    scores = states @ exact.weight.T
    scores = scores if router_bias is None else scores + router_bias
    for flags in product((False, True), (False, True), _list_groups(router)):
        has_sigmoid, renormalizes, groups = flags
        rule = _Rule(chosen.shape[1], has_sigmoid, renormalizes, scale, *groups)
        expected, best = rule.apply(scores, bias)
        if torch.equal(chosen, best) and torch.allclose(actual, expected, atol=1e-5):
            return rule
    raise NotRecognised(f"{type(router).__name__} chooses experts by another rule")


def _list_groups(router: Any) -> list[tuple[int, int, int]]:
    """Return the groups of experts to try, as the last fields of a rule."""
    num_groups = getattr(router, "num_group", None) or 1
    num_chosen = getattr(router, "topk_group", None) or 1
    if not 1 <= num_chosen < num_groups <= _MAX_GROUPS:
        return [(1, 1, 1)]
    return [(1, 1, 1), *((num_groups, num_chosen, ranked) for ranked in (1, 2))]


def check_experts(found: MixtureParts, expert_size: int) -> None:
    """Refuse experts of unexpected shapes, because the kernels trust their pointers.

    Args:
      expert_size: numbers that an expert reads and writes.

    Raises:
      NotRecognised
    """
    experts, name = found.experts, type(found.experts).__name__
    types = set()
    for part in (found.first_name, "down_proj"):
        if not isinstance(getattr(experts, part, None), nn.Parameter):
            raise NotRecognised(f"{name} has no {part} of all experts")
        types.add(getattr(experts, part).dtype)
    if (
        {name: weight.shape for name, weight in experts.named_parameters()}
        != _list_shapes(found, expert_size)
        or len(found.router.shape) != 2
        or len(types) != 1
        or getattr(experts, found.first_name).is_meta
        or not 0 < found.num_chosen <= len(found.router)
    ):
        raise NotRecognised(f"{name} has weights of an unexpected shape or type")
    if found.shared is None and found.shared_gate is not None:
        raise NotRecognised(f"{name} has a gate for no expert")


def _list_shapes(found: MixtureParts, expert_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights that experts should have."""
    shapes: dict[str, tuple[int, ...]] = {}
    size = found.intermediate_size
    num_inner = 2 * size if found.has_gate else size
    for name, *sides in (
        (found.first_name, num_inner, expert_size),
        ("down_proj", expert_size, size),
    ):
        num_experts = len(found.router)
        if found.has_biases:
            shapes[f"{name}_bias"] = num_experts, sides[0]
        order = reversed(sides) if found.is_transposed else sides
        shapes[name] = num_experts, *order
    return shapes
