"""One layer of a decoder: mixers of tokens and feed-forward networks, with their norms."""

from __future__ import annotations

from collections.abc import Sequence
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
from .networks import StepProducts
from .products import Product
from .weights import MixerWeights, SublayerWeights


@dataclass(frozen=True, slots=True)
class _StepProducts:
    """See StepProducts (networks.py)."""

    adapters: FusedAdapters
    tiles: AdapterTiles | None

    def __call__(self, product: Product, given: Tensor) -> Tensor:
        output = product.multiply(given)
        self.adapters.change(product, given, output, self.tiles)
        if product.scale is not None:
            output *= product.scale
        return output

    def find_changes(self, product: ExpertProduct) -> PairChanges | None:
        return self.adapters.find_changes(product, self.tiles)


@dataclass(frozen=True, slots=True)
class Sublayer:
    """A part of a layer that adds to the hidden states.

    Args:
      mixer: None if it does not mix tokens.
    """

    weights: SublayerWeights
    mixer: Mixer | None

    def run(
        self,
        normed: Tensor,
        tiles: Tiles,
        angles: Angles | None,
        multiply: StepProducts,
    ) -> Tensor:
        """Return what it adds, (num_tokens, hidden_size); see Layer.run."""
        body = self.weights.body
        if not isinstance(body, MixerWeights):
            return body.run(normed, tiles.slots, multiply)
        assert self.mixer is not None, "it mixes tokens"
        inputs = multiply(body.inputs, normed)
        return multiply(body.output, self.mixer.run(inputs, tiles, angles, multiply))


class Layer:
    """One layer.

    Args:
      parts: of the decoder, without the weights of products.
      adapters: change its products.
      group: the processes that share the layer; None if it is whole.
    """

    def __init__(
        self,
        sublayers: Sequence[Sublayer],
        parts: DecoderParts,
        adapters: FusedAdapters,
        group: TensorGroup | None,
    ) -> None:
        self._sublayers = tuple(sublayers)
        self._adapters = adapters
        self._group = group
        self._epsilon = parts.epsilon
        self._dtype = parts.dtype

    def compile(self) -> None:
        """Compile kernels that depend on the number of tokens."""
        for sublayer in self._sublayers:
            if not isinstance(sublayer.weights.body, MixerWeights):
                sublayer.weights.body.compile(self._dtype)

    def enter(self, hidden: Tensor) -> Tensor:
        """Normalise the input of the first layer."""
        normed = normalize(hidden, self._sublayers[0].weights.norm, self._epsilon)
        assert normed is not None, "the first sublayer has a norm"
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
        multiply = _StepProducts(self._adapters, tiles.adapters)
        nexts = [None] if following is None else following._sublayers[:1]
        for each, behind in zip(self._sublayers, (*self._sublayers[1:], *nexts)):
            weights = each.weights
            added = each.run(normed, tiles, angles, multiply)
            result = normalize(
                hidden,
                None if behind is None else behind.weights.norm,
                self._epsilon,
                added=self._sum(added),
                added_weight=weights.post_norm,
                scale=weights.scale,
            )
            # Without a norm, the next one reads what this one has read.
            normed = normed if result is None else result
        return normed

    def _sum(self, added: Tensor) -> Tensor:
        """Add up the parts of all processes that share the layer."""
        if self._group is not None:
            self._group.sum(added)
        return added
