"""The products of a decoder. Modules that read the same input are one product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ....kernels.stored import StoredWeights
from ....kernels.triton.matrices import Matrices
from ..named_products import NamedModule
from ..stored_weights import find_stored

TensorT = TypeVar("TensorT", Tensor, Tensor | None)


class Weight(Protocol):
    """The weight of a product, (num_outputs, num_inputs), in some form."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype:
        """The type of inputs and outputs."""

    @property
    def device(self) -> torch.device: ...

    def multiply(self, given: Tensor, bias: Tensor | None) -> Tensor:
        """Multiply (num_tokens, num_inputs), and add a bias."""

    def weigh(
        self, given: Tensor, bias: Tensor | None, activation: str, scale: float
    ) -> Tensor | None:
        """Multiply, and weigh the second half of the outputs by the first, activated.

        Args:
          activation, scale: as in weigh_gates (kernels/triton/steps.py).

        Returns:
          (num_tokens, num_outputs / 2); None if that needs another kernel
        """

    def read(self, outputs: Tensor) -> Tensor:
        """Return the weights of some outputs, (count, num_inputs) float32, on the CPU."""


class MakeWeight(Protocol):
    """Makes weights in forms of its own, from modules that read the same input."""

    def join(self, modules: Sequence[nn.Linear], order: Tensor | None) -> Weight | None:
        """Join weights; see LowBits (low_bits.py)."""

    def hold(self, numbers: Tensor) -> Weight:
        """Return a weight of the model's type; see LowBits."""

    def hold_experts(self, weights: StoredWeights, num_experts: int) -> Matrices:
        """Return the weights of experts; see LowBits."""


@dataclass(frozen=True, slots=True)
class PlainWeight:
    """A Weight of the model's type."""

    numbers: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.numbers.dtype

    @property
    def device(self) -> torch.device:
        return self.numbers.device

    def multiply(self, given: Tensor, bias: Tensor | None) -> Tensor:
        return linear(given, self.numbers, bias)

    def weigh(
        self, given: Tensor, bias: Tensor | None, activation: str, scale: float
    ) -> Tensor | None:
        return None

    def read(self, outputs: Tensor) -> Tensor:
        rows = self.numbers[outputs.to(self.device)]
        return rows.to("cpu", torch.float32)


# Each is itself alone, so that one can be looked up.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Product:
    """Modules that read the same numbers, as one product.

    Args:
      modules: they have lost their weights, but for a head and a router.
      bias: (num_outputs,); None without biases
      order: (num_outputs,) int64 on the CPU, the places of the outputs among those of the
        modules, which follow each other; None if they are in order
      scale: (num_outputs,) float32, factors of the outputs, behind the changes of adapters;
        None if there are none
    """

    modules: tuple[NamedModule, ...]
    weight: Weight
    bias: Tensor | None = None
    order: Tensor | None = None
    scale: Tensor | None = None

    def get_order(self) -> Tensor:
        """Return the order, also if there is none."""
        return torch.arange(self.weight.shape[0]) if self.order is None else self.order

    def multiply(self, given: Tensor) -> Tensor:
        """Multiply (num_tokens, num_inputs), without the factors of outputs."""
        return self.weight.multiply(given, self.bias)


def join_products(
    modules: Sequence[nn.Linear],
    order: Tensor | None = None,
    *,
    make: MakeWeight | None = None,
    scale: Tensor | None = None,
) -> Product:
    """Join modules to one product; they keep their weights.

    Args:
      order: as in Product, on any device.
      make: is asked first for a weight.
      scale: as in Product, on any device.
    """
    order = None if order is None else order.cpu()
    weight = None if make is None else make.join(modules, order)
    if weight is None:
        numbers = [_get_numbers(each) for each in modules]
        joined = numbers[0] if len(numbers) == 1 else torch.cat(numbers)
        joined = _put_in_order(joined, order)
        weight = PlainWeight(joined) if make is None else make.hold(joined)
    return Product(
        modules=tuple(modules),
        weight=weight,
        bias=_put_in_order(_join_biases(modules), order),
        order=order,
        scale=None if scale is None else scale.to(weight.device),
    )


def _get_numbers(module: nn.Linear) -> Tensor:
    stored = find_stored(module)
    if stored is not None:
        return stored.restore(module.weight.dtype)
    return module.weight.detach()


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
