"""Take the weights of networks from their modules."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ....kernels.triton.experts import Experts, Router
from ....kernels.triton.matrices import Matrices, hold
from ..description import (
    BesideParts,
    DecoderParts,
    LookupParts,
    MixtureParts,
    MlpParts,
    release,
)
from ..named_products import name_experts, name_router
from ..stored_weights import find_stored_experts
from .expert_products import ExpertProduct
from .networks import Beside, Dense, Lookup, Mixture, Network
from .products import (
    MakeWeight,
    PlainWeight,
    Product,
    join_products,
)


def take_network(
    body: MlpParts | MixtureParts | BesideParts | LookupParts,
    parts: DecoderParts,
    make: MakeWeight | None,
) -> Network | Beside | Lookup:
    """Take the weights of what reads one token; only experts lose theirs here.

    Args:
      parts: of its decoder.
      make: as in join_products.
    """
    activation, names = parts.activation, parts.names
    match body:
        case MlpParts():
            return _take_dense(body, activation, make)
        case MixtureParts():
            return _take_mixture(body, activation, make, names)
        case BesideParts():
            return Beside(
                network=_take_dense(body.network, activation, make),
                mixture=_take_mixture(body.mixture, activation, make, names),
                router_norm=body.router_norm,
                input_norm=body.input_norm,
                output_norm=body.output_norm,
                network_norm=body.network_norm,
                epsilon=parts.epsilon,
            )
        case LookupParts():
            return Lookup(
                gate=join_products([body.gate], make=make),
                output=join_products([body.output], make=make),
                activation=activation,
            )


def _take_dense(mlp: MlpParts, activation: str, make: MakeWeight | None) -> Dense:
    return Dense(
        inputs=join_products(mlp.inputs, make=make),
        output=join_products([mlp.output], make=make),
        has_gate=mlp.has_gate,
        gate_scale=mlp.gate_scale,
        activation=activation,
    )


def _take_mixture(
    mixture: MixtureParts,
    activation: str,
    make: MakeWeight | None,
    names: Mapping[nn.Module, str],
) -> Mixture:
    shared, gate, output = mixture.shared, mixture.shared_gate, mixture.output
    experts = _take_experts(mixture, activation, make)
    taken = Mixture(
        scores=Product(
            modules=(name_router(mixture, names),),
            weight=PlainWeight(mixture.router.detach()),
        ),
        router=Router(
            num_experts=len(mixture.router),
            num_chosen=mixture.num_chosen,
            renormalizes=mixture.renormalizes,
            num_groups=mixture.num_groups,
            num_chosen_groups=mixture.num_chosen_groups,
            num_ranked=mixture.num_ranked,
            has_sigmoid=mixture.has_sigmoid,
            scale=mixture.scale,
            biases=_to_float(mixture.router_bias),
            choice_bias=_to_float(mixture.choice_bias),
            expert_scales=_to_float(mixture.expert_scales),
        ),
        experts=experts,
        weights=(
            _make_product(mixture, mixture.first_name, experts, names),
            _make_product(mixture, "down_proj", experts, names),
        ),
        inputs=join_products(mixture.inputs, make=make) if mixture.inputs else None,
        output=None if output is None else join_products([output], make=make),
        shared=None if shared is None else _take_dense(shared, activation, make),
        shared_gate=(None if gate is None else join_products([gate], make=make)),
    )
    for name in (mixture.first_name, "down_proj"):
        release([mixture.experts], name)
    return taken


def _to_float(numbers: Tensor | None) -> Tensor | None:
    return None if numbers is None else numbers.detach().float().contiguous()


def _take_experts(
    mixture: MixtureParts, activation: str, make: MakeWeight | None
) -> Experts:
    clamp = mixture.clamp
    return Experts(
        first=_take_matrices(mixture, mixture.first_name, make),
        first_bias=_take_bias(mixture, mixture.first_name),
        second=_take_matrices(mixture, "down_proj", make),
        second_bias=_take_bias(mixture, "down_proj"),
        has_gate=mixture.has_gate,
        activation=activation if clamp is None else "clamped",
        slope=0.0 if clamp is None else clamp.slope,
        limit=0.0 if clamp is None else clamp.limit,
    )


def _make_product(
    mixture: MixtureParts, name: str, experts: Experts, names: Mapping[nn.Module, str]
) -> ExpertProduct:
    return ExpertProduct(
        modules=name_experts(mixture, names, name),
        experts=experts,
        is_first=name == mixture.first_name,
        num_chosen=mixture.num_chosen,
        order=mixture.order_outputs(name),
    )


def _take_matrices(
    mixture: MixtureParts, name: str, make: MakeWeight | None
) -> Matrices:
    num_experts = len(mixture.router)
    order = mixture.order_outputs(name)
    stored = find_stored_experts(mixture.experts).get(name)
    if stored is not None:
        if order is not None:
            rows = torch.arange(stored.num_outputs, device=stored.codes.device)
            rows = rows.unflatten(0, (num_experts, -1))[:, order]
            stored = stored.take(rows.flatten())
        assert make is not None, "whoever keeps such weights reads them"
        return make.hold_experts(stored, num_experts)
    weight: Tensor = getattr(mixture.experts, name).detach()
    if mixture.is_transposed:
        weight = weight.transpose(1, 2)
    if order is not None:
        weight = weight[:, order]
    return hold(weight)


def _take_bias(mixture: MixtureParts, name: str) -> Tensor | None:
    """Return the biases of all experts, (num_experts, outputs)."""
    if not mixture.has_biases:
        return None
    bias: Tensor = getattr(mixture.experts, f"{name}_bias").detach()
    order = mixture.order_outputs(name)
    return bias if order is None else bias[:, order]
