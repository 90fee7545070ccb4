"""The weights of a decoder's layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ...attention.probe import LayerSpec
from ..description import (
    AttentionParts,
    DecoderParts,
    LatentParts,
    LayerParts,
    MixerParts,
    StateParts,
    list_products,
    release,
)
from ..stored_linear import release_stored
from .checks import check_parts, find_halves
from .expert_products import ExpertProduct
from .networks import Network
from .products import MakeWeight, Product, join_products
from .take_network import take_network


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentProducts:
    """The products between the first product and the last of attention over latents.

    Args:
      query: None if queries are among the inputs.
      projection: (num_heads * (key_dim + value_dim), rank), of latents
    """

    query: Product | None
    projection: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer. Norms are float32, the other weights have the model's type.

    Args:
      mixer: the rest of the mixer's parts; its products have lost their weights.
      inputs: of the mixer, in the order that it reads.
      middle: the products of latents; None if the mixer has none
      network: reads the hidden states behind the mixer.
      mixer_scale, mlp_scale: factors of what is added to the hidden states.
    """

    input_norm: Tensor
    mixer: MixerParts
    inputs: Product
    output: Product
    middle: LatentProducts | None
    post_mixer_norm: Tensor | None
    mlp_norm: Tensor
    network: Network
    post_mlp_norm: Tensor | None
    mixer_scale: float
    mlp_scale: float

    @property
    def products(self) -> tuple[Product | ExpertProduct, ...]:
        query = None if self.middle is None else self.middle.query
        middle = () if query is None else (query,)
        return self.inputs, *middle, self.output, *self.network.products


def take_weights(
    parts: DecoderParts, make: MakeWeight | None = None
) -> tuple[LayerWeights, ...]:
    """Take the weights of layers from their modules, which lose them.

    One layer after the other, so that a large model is never on the device twice.

    Args:
      make: as in join_products.

    Raises:
      NotRecognised: see check_parts; no module has lost anything.
    """
    check_parts(parts)
    angles = _Angles()
    activation = parts.activation
    names = parts.names
    return tuple(
        _take_layer(layer, angles, activation, make, names) for layer in parts.layers
    )


def list_calls(mixers: Iterable[MixerParts]) -> list[LayerSpec]:
    """Return the calls of attention of layers, in order."""
    kinds = AttentionParts | LatentParts
    return [mixer.call for mixer in mixers if isinstance(mixer, kinds)]


def _take_layer(
    layer: LayerParts,
    angles: _Angles,
    activation: str,
    make: MakeWeight | None,
    names: Mapping[nn.Module, str],
) -> LayerWeights:
    first, second = find_halves(layer)
    mixer = first.body
    assert isinstance(mixer, MixerParts), "check_parts looked at it"
    assert first.norm is not None and second.norm is not None, "as find_halves found"
    inputs = join_products(mixer.inputs, mixer.order, make=make)
    output = join_products([mixer.output], make=make)
    middle = _take_latents(mixer, make) if isinstance(mixer, LatentParts) else None
    taken_from = list_products(mixer)
    release(taken_from)
    release_stored(taken_from)
    return LayerWeights(
        input_norm=first.norm,
        mixer=mixer if isinstance(mixer, StateParts) else angles.share(mixer),
        inputs=inputs,
        output=output,
        middle=middle,
        post_mixer_norm=first.post_norm,
        mlp_norm=second.norm,
        network=take_network(second.body, activation, make, names),
        post_mlp_norm=second.post_norm,
        mixer_scale=first.scale,
        mlp_scale=second.scale,
    )


def _take_latents(mixer: LatentParts, make: MakeWeight | None) -> LatentProducts:
    query = None
    if mixer.query is not None:
        query = join_products([mixer.query], mixer.query_order, make=make)
    taken = LatentProducts(query=query, projection=mixer.projection.weight.detach())
    release([mixer.projection])
    return taken


class _Angles:
    """Keeps the angles of layers once; most models have the same ones in all layers."""

    def __init__(self) -> None:
        self._known: list[tuple[Tensor, Tensor]] = []

    def share(
        self, mixer: AttentionParts | LatentParts
    ) -> AttentionParts | LatentParts:
        for cos, sin in self._known:
            if torch.equal(cos, mixer.cos) and torch.equal(sin, mixer.sin):
                return replace(mixer, cos=cos, sin=sin)
        self._known.append((mixer.cos, mixer.sin))
        return mixer
