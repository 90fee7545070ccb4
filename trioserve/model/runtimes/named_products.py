"""The names of the products that adapters may change; experts and routers have no linear modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from ..adapters.products import name_expert
from .description import MixtureParts


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedProduct:
    """A product that is not a linear module: of one expert, or of a router."""

    name: str
    out_features: int
    in_features: int


NamedModule = nn.Linear | NamedProduct


def find_name(product: NamedModule, names: Mapping[nn.Module, str]) -> str:
    """Return the name of a product.

    Args:
      names: of modules.
    """
    return product.name if isinstance(product, NamedProduct) else names[product]


def name_router(mixture: MixtureParts, names: Mapping[nn.Module, str]) -> NamedProduct:
    """Return the product of a router."""
    num_experts, num_inputs = mixture.router.shape
    name = next(
        name
        for module, name in names.items()
        if getattr(module, "weight", None) is mixture.router
    )
    return NamedProduct(name=name, out_features=num_experts, in_features=num_inputs)


def name_experts(
    mixture: MixtureParts, names: Mapping[nn.Module, str], weight: str
) -> tuple[NamedProduct, ...]:
    """Return the product of each expert for one of their weights.

    Args:
      weight: its name, of all experts.
    """
    num_experts, *shape = getattr(mixture.experts, weight).shape
    num_outputs, num_inputs = reversed(shape) if mixture.is_transposed else shape
    return tuple(
        NamedProduct(
            name=name_expert(names[mixture.experts], expert, weight),
            out_features=num_outputs,
            in_features=num_inputs,
        )
        for expert in range(num_experts)
    )
