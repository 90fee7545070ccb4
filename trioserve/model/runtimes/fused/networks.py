"""The networks of layers: one for all tokens, or a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn.functional import linear

from ....kernels.triton.experts import Experts, Router, sum_outputs
from ....kernels.triton.steps import weigh_gates
from .mixers import Multiply
from .products import Product


class Network(Protocol):
    """The network of a layer.

    Attributes:
      products: those that adapters may change.
    """

    @property
    def products(self) -> tuple[Product, ...]: ...

    def run(self, given: Tensor, slots: Tensor, multiply: Multiply) -> Tensor:
        """Run the network.

        Args:
          given: (num_tokens, hidden_size)
          slots: (num_tokens,), negative for padding

        Returns:
          (num_tokens, hidden_size); a part of the sum, if processes share the layer
        """

    def compile(self) -> None:
        """Compile kernels that depend on the number of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A Network for all tokens.

    Args:
      inputs: the gates first, if it has gates.
    """

    inputs: Product
    output: Product
    has_gate: bool
    activation: str

    @property
    def products(self) -> tuple[Product, ...]:
        return self.inputs, self.output

    def run(self, given: Tensor, slots: Tensor, multiply: Multiply) -> Tensor:
        inner = multiply(self.inputs, given)
        gates, numbers = inner.chunk(2, dim=1) if self.has_gate else (inner, None)
        return multiply(self.output, weigh_gates(gates, numbers, self.activation))

    def compile(self) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A Network of experts.

    Args:
      weight: (num_experts, hidden_size), of the router
      shared: a network for all tokens beside them; None if there is none
      shared_gate: of one output, whose sigmoid weighs it; None if nothing does
    """

    weight: Tensor
    router: Router
    experts: Experts
    shared: Dense | None
    shared_gate: Product | None

    @property
    def products(self) -> tuple[Product, ...]:
        shared = () if self.shared is None else self.shared.products
        return (*shared, *([] if self.shared_gate is None else [self.shared_gate]))

    def run(self, given: Tensor, slots: Tensor, multiply: Multiply) -> Tensor:
        scores = linear(given.to(self.weight.dtype), self.weight)
        parts = self.experts.run(given, self.router.choose(scores, slots))
        shared = gates = None
        if self.shared is not None:
            shared = self.shared.run(given, slots, multiply)
        if self.shared_gate is not None:
            gates = multiply(self.shared_gate, given)
        return sum_outputs(parts, shared, gates)

    def compile(self) -> None:
        self.experts.compile(self.weight.dtype)
