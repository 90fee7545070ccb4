"""One layer of a decoder: a mixer and a feed-forward network, with their norms."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ....kernels.triton.adapted_pairs import PairChanges
from ....kernels.triton.steps import Angles, normalize
from ....kernels.triton.tiles import AdapterTiles, Tiles
from ...shards.group import TensorGroup
from ..description import DecoderParts
from .adapters import FusedAdapters
from .expert_products import ExpertProduct
from .mixers import Mixer
from .products import Product
from .weights import LayerWeights


@dataclass(frozen=True, slots=True)
class _StepProducts:
    """See StepProducts (networks.py)."""

    adapters: FusedAdapters
    tiles: AdapterTiles | None

    def __call__(self, product: Product, given: Tensor) -> Tensor:
        output = product.multiply(given)
        self.adapters.change(product, given, output, self.tiles)
        return output

    def find_changes(self, product: ExpertProduct) -> PairChanges | None:
        return self.adapters.find_changes(product, self.tiles)


class Layer:
    """One layer.

    Args:
      parts: of the decoder, without the weights of products.
      adapters: change its products.
      group: the processes that share the layer; None if it is whole.
    """

    def __init__(
        self,
        weights: LayerWeights,
        mixer: Mixer,
        parts: DecoderParts,
        adapters: FusedAdapters,
        group: TensorGroup | None,
    ) -> None:
        self._weights = weights
        self._mixer = mixer
        self._adapters = adapters
        self._group = group
        self._epsilon = parts.epsilon

    def compile(self) -> None:
        """Compile kernels that depend on the number of tokens."""
        self._weights.network.compile()

    def enter(self, hidden: Tensor) -> Tensor:
        """Normalise the input of the first layer."""
        normed = normalize(hidden, self._weights.input_norm, self._epsilon)
        assert normed is not None, "there is a norm"
        return normed

    def run(
        self,
        hidden: Tensor,
        normed: Tensor,
        tiles: Tiles,
        angles: Angles | None,
        following: Layer | None,
    ) -> Tensor:
        """Add to the hidden states, and return the first input of the following layer.

        Args:
          hidden: (num_tokens, hidden_size), changed in place
          normed: the same, normalised by this layer's first norm
          angles: of the tokens; None if they are at their places.
          following: None at the last layer, whose result means nothing.
        """
        weights = self._weights
        multiply = _StepProducts(self._adapters, tiles.adapters)
        mixed = self._mixer.run(
            multiply(weights.inputs, normed), tiles, angles, multiply
        )
        middle = normalize(
            hidden,
            weights.mlp_norm,
            self._epsilon,
            added=self._sum(multiply(weights.output, mixed)),
            added_weight=weights.post_mixer_norm,
            scale=weights.mixer_scale,
        )
        assert middle is not None, "there is a norm"
        added = weights.network.run(middle, tiles.slots, multiply)
        result = normalize(
            hidden,
            None if following is None else following._weights.input_norm,
            self._epsilon,
            added=self._sum(added),
            added_weight=weights.post_mlp_norm,
            scale=weights.mlp_scale,
        )
        return hidden if result is None else result

    def _sum(self, added: Tensor) -> Tensor:
        """Add up the parts of all processes that share the layer."""
        if self._group is not None:
            self._group.sum(added)
        return added
