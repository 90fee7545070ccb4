"""The weights of a decoder's layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...attention.probe import LayerSpec
from ..description import (
    AttentionParts,
    DecoderParts,
    DeltaParts,
    LatentParts,
    LayerParts,
    Mamba2Parts,
    MixerParts,
    StateParts,
    SublayerParts,
    list_products,
    release,
)
from .checks import check_parts
from .expert_products import ExpertProduct
from .networks import Beside, Lookup, Network
from .products import MakeWeight, Product, join_products
from .take_network import take_network


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerWeights:
    """The products of a mixer. They have the model's type.

    Args:
      parts: the rest of the mixer's parts; its products have lost their weights.
      inputs: in the order that the mixer reads.
      between: the products between the first and the last, in the order of list_products.
      projection: (num_heads * (key_dim + value_dim), rank), of latents; None if it has none
    """

    parts: MixerParts
    inputs: Product
    between: tuple[Product, ...]
    output: Product
    projection: Tensor | None

    @property
    def products(self) -> tuple[Product, ...]:
        return self.inputs, *self.between, self.output


@dataclass(frozen=True, slots=True, kw_only=True)
class SublayerWeights:
    """A part of a layer that adds to the hidden states; see SublayerParts (description.py).

    Args:
      output_scale: factor of the hidden states behind it.
    """

    norm: Tensor | None
    body: MixerWeights | Network | Beside | Lookup
    post_norm: Tensor | None
    scale: float
    output_scale: float

    @property
    def products(self) -> tuple[Product | ExpertProduct, ...]:
        return self.body.products

    @property
    def writes_cache(self) -> bool:
        """Whether it writes keys and values, or a state."""
        if not isinstance(self.body, MixerWeights):
            return False
        parts = self.body.parts
        return not isinstance(parts, AttentionParts) or parts.call.shares is None


# In their order.
LayerWeights = tuple[SublayerWeights, ...]


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

    def take(sublayer: SublayerParts, output_scale: float) -> SublayerWeights:
        body = sublayer.body
        taken = (
            _take_mixer(body, angles, make)
            if isinstance(body, MixerParts)
            else take_network(body, parts, make)
        )
        products = list_products(body)
        release(products)
        return SublayerWeights(
            norm=sublayer.norm,
            body=taken,
            post_norm=sublayer.post_norm,
            scale=sublayer.scale,
            output_scale=output_scale,
        )

    def take_layer(layer: LayerParts) -> LayerWeights:
        *others, last = layer.sublayers
        taken = [take(each, 1.0) for each in others]
        return *taken, take(last, layer.output_scale)

    return tuple(map(take_layer, parts.layers))


def list_calls(mixers: Iterable[MixerParts]) -> list[LayerSpec]:
    """Return the calls of attention of layers, in order."""
    kinds = AttentionParts | LatentParts
    return [mixer.call for mixer in mixers if isinstance(mixer, kinds)]


def _take_mixer(
    mixer: MixerParts, angles: _Angles, make: MakeWeight | None
) -> MixerWeights:
    projection = None
    if isinstance(mixer, LatentParts):
        projection = mixer.projection.weight.detach()
        release([mixer.projection])
    scale = None
    if isinstance(mixer, AttentionParts | Mamba2Parts):
        scale = mixer.inputs_scale
    return MixerWeights(
        parts=mixer if isinstance(mixer, StateParts) else angles.share(mixer),
        inputs=join_products(mixer.inputs, mixer.order, make=make, scale=scale),
        between=tuple(_list_between(mixer, make)),
        output=join_products([mixer.output], make=make),
        projection=projection,
    )


def _list_between(mixer: MixerParts, make: MakeWeight | None) -> Iterator[Product]:
    """Join the products between the first and the last."""
    if isinstance(mixer, LatentParts) and mixer.query is not None:
        yield join_products([mixer.query], mixer.query_order, make=make)
    if isinstance(mixer, DeltaParts):
        for each in (mixer.widen_decays, mixer.widen_gates):
            if each is not None:
                yield join_products([each], make=make)


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
