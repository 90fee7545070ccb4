"""One layer of a decoder: mixers of tokens and feed-forward networks, with their norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ....kernels.triton.adapted_pairs import PairChanges
from ....kernels.triton.steps import Angles, normalize, weigh_gates
from ....kernels.triton.tiles import AdapterTiles, Tiles
from ...shards.group import TensorGroup
from ..description import DecoderParts
from .adapters import FusedAdapters
from .expert_products import ExpertProduct
from .mixers import Mixer
from .networks import Beside, Lookup, StepProducts
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

    def weigh(
        self, product: Product, given: Tensor, activation: str, scale: float
    ) -> Tensor:
        if self.tiles is None and product.scale is None:
            weight, bias = product.weight, product.bias
            weighed = weight.weigh(given, bias, activation, scale)
            if weighed is not None:
                return weighed
        gates, numbers = self(product, given).chunk(2, dim=1)
        return weigh_gates(gates, numbers, activation, scale=scale)

    def find_changes(self, product: ExpertProduct) -> PairChanges | None:
        return self.adapters.find_changes(product, self.tiles)


@dataclass(frozen=True, slots=True)
class LayerStep:
    """What layers read in a step besides hidden states.

    Args:
      angles: of the tokens; None if they are at their places.
      lookups: (num_tokens, num_layers, size), vectors of the tokens for all layers; None if
        layers look up nothing
      wanted: the tokens that go on behind the last sublayer that writes a cache or a state;
        nobody reads the hidden states of the others. None if all go on.
    """

    tiles: Tiles
    angles: Angles | None = None
    lookups: Tensor | None = None
    wanted: Wanted | None = None

    def narrow(self, places: Tensor, tiles: Tiles) -> LayerStep:
        """Return the step with its wanted tokens; see Wanted.

        It is called before the first layer runs, because kernels read numbers of a step before
        those in front of them have ended (follow.py).

        Args:
          tiles: of the wanted tokens alone.
        """
        angles, lookups = self.angles, self.lookups
        if angles is not None:
            angles = replace(angles, rows=angles.rows[places])
        if lookups is not None:
            lookups = lookups[places]
        return replace(self, wanted=Wanted(places, LayerStep(tiles, angles, lookups)))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The tokens of a step whose logits are wanted, each the last one of its row.

    Attributes:
      places: (num_wanted,) int64, among the tokens of the step
      step: of these tokens alone.
    """

    places: Tensor
    step: LayerStep


@dataclass(frozen=True, slots=True)
class Sublayer:
    """A part of a layer that adds to the hidden states.

    Args:
      layer: place of its layer.
      mixer: None if it does not mix tokens.
      is_last_writer: no sublayer behind it writes a cache or a state.
    """

    layer: int
    weights: SublayerWeights
    mixer: Mixer | None
    is_last_writer: bool

    def mix(self, normed: Tensor, step: LayerStep, multiply: StepProducts) -> Tensor:
        """Return what `run` reads: the mixed tokens; `normed` if it mixes none."""
        body = self.weights.body
        if not isinstance(body, MixerWeights):
            return normed
        assert self.mixer is not None, "it mixes tokens"
        inputs = multiply(body.inputs, normed)
        return self.mixer.run(inputs, step.tiles, step.angles, multiply)

    def run(
        self,
        hidden: Tensor,
        given: Tensor,
        step: LayerStep,
        multiply: StepProducts,
    ) -> Tensor:
        """Return what it adds, (num_tokens, hidden_size); see Layer.run.

        Args:
          given: from `mix`.
        """
        match self.weights.body:
            case MixerWeights() as body:
                return multiply(body.output, given)
            case Beside() as both:
                return both.run(hidden, given, step.tiles.slots, multiply)
            case Lookup() as lookup:
                assert step.lookups is not None, "the step has looked them up"
                return lookup.run(hidden, step.lookups[:, self.layer], multiply)
            case network:
                return network.run(given, step.tiles.slots, multiply)


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
        norm = self._sublayers[0].weights.norm
        normed = normalize(hidden, norm, self._epsilon, is_first=True)
        assert normed is not None, "the first sublayer has a norm"
        return normed

    def run(
        self,
        hidden: Tensor,
        normed: Tensor,
        step: LayerStep,
        following: Layer | None,
    ) -> tuple[Tensor, Tensor, LayerStep]:
        """Add to the hidden states.

        Args:
          hidden: (num_tokens, hidden_size), changed in place
          normed: the same, normalised by this layer's first norm
          following: None at the last layer.

        Returns:
          the hidden states, the first input of the following layer, and its step; of the wanted
          tokens alone, if this layer is the last one that writes a cache or a state
        """
        multiply = _StepProducts(self._adapters, step.tiles.adapters)
        nexts = [None] if following is None else following._sublayers[:1]
        for each, behind in zip(self._sublayers, (*self._sublayers[1:], *nexts)):
            weights = each.weights
            given = each.mix(normed, step, multiply)
            if each.is_last_writer and step.wanted is not None:
                places = step.wanted.places
                hidden, normed, given = hidden[places], normed[places], given[places]
                step = step.wanted.step
                if not len(places):
                    break
                multiply = _StepProducts(self._adapters, step.tiles.adapters)
            added = each.run(hidden, given, step, multiply)
            result = normalize(
                hidden,
                None if behind is None else behind.weights.norm,
                self._epsilon,
                added=self._sum(added),
                added_weight=weights.post_norm,
                scale=weights.scale,
                output_scale=weights.output_scale,
            )
            # Without a norm, the next one reads what this one has read, or hidden states.
            normed = normed if result is None else result
        return hidden, normed, step

    def _sum(self, added: Tensor) -> Tensor:
        """Add up the parts of all processes that share the layer."""
        if self._group is not None:
            self._group.sum(added)
        return added
