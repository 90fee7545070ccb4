"""The networks of layers: one for all tokens, or a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ....kernels.triton.adapted_pairs import PairChanges
from ....kernels.triton.experts import Experts, Router, sum_outputs
from ....kernels.triton.products import SIZES
from ....kernels.triton.steps import normalize, weigh_gates
from .expert_products import ExpertProduct
from .products import Product


class StepProducts(Protocol):
    """The products of a layer in one step, with the changes of adapters."""

    def __call__(self, product: Product, given: Tensor) -> Tensor:
        """Run a product."""

    def weigh(
        self, product: Product, given: Tensor, activation: str, scale: float
    ) -> Tensor:
        """Run a product whose first outputs are gates of the others.

        Args:
          activation, scale: as in weigh_gates.

        Returns:
          (num_tokens, num_outputs / 2)
        """

    def find_changes(self, product: ExpertProduct) -> PairChanges | None:
        """Return the changes of experts; None if there are none in this step."""


class Network(Protocol):
    """The network of a layer.

    Attributes:
      products: those that adapters may change.
    """

    @property
    def products(self) -> tuple[Product | ExpertProduct, ...]: ...

    def run(self, given: Tensor, slots: Tensor, multiply: StepProducts) -> Tensor:
        """Run the network.

        Args:
          given: (num_tokens, hidden_size)
          slots: (num_tokens,), negative for padding

        Returns:
          (num_tokens, hidden_size); a part of the sum, if processes share the layer
        """

    def compile(self, dtype: torch.dtype) -> None:
        """Compile kernels that depend on the number of tokens.

        Args:
          dtype: of hidden states.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A Network for all tokens.

    Args:
      inputs: the gates first, if it has gates.
      gate_scale: factor of gates before their activation.
    """

    inputs: Product
    output: Product
    has_gate: bool
    gate_scale: float
    activation: str

    @property
    def products(self) -> tuple[Product, ...]:
        return self.inputs, self.output

    def run(self, given: Tensor, slots: Tensor, multiply: StepProducts) -> Tensor:
        activation, scale = self.activation, self.gate_scale
        if self.has_gate:
            active = multiply.weigh(self.inputs, given, activation, scale)
        else:
            inner = multiply(self.inputs, given)
            active = weigh_gates(inner, None, activation, scale=scale)
        return multiply(self.output, active)

    def compile(self, dtype: torch.dtype) -> None:
        if not self.has_gate:
            return
        weight, bias = self.inputs.weight, self.inputs.bias
        shape = max(SIZES), weight.shape[1]
        given = torch.zeros(shape, dtype=dtype, device=weight.device)
        for count in SIZES:
            weight.weigh(given[:count], bias, self.activation, self.gate_scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A Network of experts.

    Args:
      scores: the product of the router
      weights: the first of the experts and the second, as adapters change them.
      inputs, output: before and behind the experts; None if they read and write hidden states.
      shared: a network for all tokens beside them; None if there is none
      shared_gate: of one output, whose sigmoid weighs it; None if nothing does
    """

    scores: Product
    router: Router
    experts: Experts
    weights: tuple[ExpertProduct, ExpertProduct]
    inputs: Product | None
    output: Product | None
    shared: Dense | None
    shared_gate: Product | None

    @property
    def products(self) -> tuple[Product | ExpertProduct, ...]:
        shared = () if self.shared is None else self.shared.products
        others = self.inputs, self.output, self.shared_gate
        own = [each for each in others if each is not None]
        return self.scores, *self.weights, *shared, *own

    def run(
        self,
        given: Tensor,
        slots: Tensor,
        multiply: StepProducts,
        routed: Tensor | None = None,
    ) -> Tensor:
        """Run the experts; see Network.

        Args:
          routed: what the router reads; None is `given`.
        """
        routed = given if routed is None else routed
        scores = multiply(self.scores, routed.to(self.scores.weight.dtype))
        first, second = map(multiply.find_changes, self.weights)
        choices = self.router.choose(scores, slots)
        low = given if self.inputs is None else multiply(self.inputs, given)
        parts = self.experts.run(low, choices, changes=(first, second))
        shared = gates = None
        if self.shared is not None:
            shared = self.shared.run(given, slots, multiply)
        if self.shared_gate is not None:
            gates = multiply(self.shared_gate, given)
        mixed = sum_outputs(parts, shared, gates)
        return mixed if self.output is None else multiply(self.output, mixed)

    def compile(self, dtype: torch.dtype) -> None:
        self.experts.compile(dtype, self.router.num_chosen)
        if self.shared is not None:
            self.shared.compile(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A network and a mixture of experts beside it; see BesideParts (description.py)."""

    network: Dense
    mixture: Mixture
    router_norm: Tensor
    input_norm: Tensor
    output_norm: Tensor
    network_norm: Tensor
    epsilon: float

    @property
    def products(self) -> tuple[Product | ExpertProduct, ...]:
        return *self.network.products, *self.mixture.products

    def run(
        self, hidden: Tensor, given: Tensor, slots: Tensor, multiply: StepProducts
    ) -> Tensor:
        """Run both.

        Args:
          hidden: (num_tokens, hidden_size)
          given: what the network reads.
          slots: as in Network.run.

        Returns:
          (num_tokens, hidden_size)
        """
        routed = self._normalize(hidden, self.router_norm)
        read = self._normalize(hidden, self.input_norm)
        output = self.network.run(given, slots, multiply)
        output = self._normalize(output, self.network_norm)
        added = self.mixture.run(read, slots, multiply, routed)
        normalize(
            output, None, self.epsilon, added=added, added_weight=self.output_norm
        )
        return output

    def _normalize(self, numbers: Tensor, weight: Tensor) -> Tensor:
        normed = normalize(numbers, weight, self.epsilon)
        assert normed is not None, "there is a norm"
        return normed

    def compile(self, dtype: torch.dtype) -> None:
        """See Network."""
        self.network.compile(dtype)
        self.mixture.compile(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """The vector that a layer looks up for each token; see LookupParts (description.py)."""

    gate: Product
    output: Product
    activation: str

    @property
    def products(self) -> tuple[Product, ...]:
        return self.gate, self.output

    def run(self, hidden: Tensor, vectors: Tensor, multiply: StepProducts) -> Tensor:
        """Weigh the vectors of tokens.

        Args:
          hidden: (num_tokens, hidden_size)
          vectors: (num_tokens, size)

        Returns:
          (num_tokens, hidden_size)
        """
        gates = multiply(self.gate, hidden)
        return multiply(self.output, weigh_gates(gates, vectors, self.activation))

    def compile(self, dtype: torch.dtype) -> None:
        """See Network."""
