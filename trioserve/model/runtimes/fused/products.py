"""The products of a decoder. Modules that read the same input are one product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

TensorT = TypeVar("TensorT", Tensor, Tensor | None)


# Each is itself alone, so that one can be looked up.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Product:
    """Modules that read the same numbers, as one product.

    Args:
      modules: they have lost their weights, but for a head.
      weight: (num_outputs, num_inputs), of the model's type
      bias: (num_outputs,); None without biases
      order: (num_outputs,) int64 on the CPU, the places of the outputs among those of the
        modules, which follow each other; None if they are in order
    """

    modules: tuple[nn.Linear, ...]
    weight: Tensor
    bias: Tensor | None = None
    order: Tensor | None = None

    def get_order(self) -> Tensor:
        """Return the order, also if there is none."""
        return torch.arange(len(self.weight)) if self.order is None else self.order

    def multiply(self, given: Tensor) -> Tensor:
        """Multiply (num_tokens, num_inputs)."""
        return linear(given, self.weight, self.bias)


def join_products(modules: Sequence[nn.Linear], order: Tensor | None = None) -> Product:
    """Join modules to one product; they keep their weights.

    Args:
      order: as in Product, on any device.
    """
    weights = [each.weight for each in modules]
    order = None if order is None else order.cpu()
    return Product(
        modules=tuple(modules),
        weight=_put_in_order(
            (weights[0] if len(weights) == 1 else torch.cat(weights)).detach(), order
        ),
        bias=_put_in_order(_join_biases(modules), order),
        order=order,
    )


def _put_in_order(joined: TensorT, order: Tensor | None) -> TensorT:
    """Put the outputs of joined products in an order."""
    if joined is None or order is None:
        return joined
    return joined[order.to(joined.device)]


def _join_biases(products: Sequence[nn.Linear]) -> Tensor | None:
    if all(product.bias is None for product in products):
        return None
    return torch.cat(
        [
            (
                product.weight.new_zeros(product.out_features)
                if product.bias is None
                else product.bias.detach()
            )
            for product in products
        ]
    )
