"""The weights of a decoder's layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...attention.paged_triton import MAX_DIM
from ...attention.probe import LayerSpec
from ..choice import NotRecognised
from ..description import (
    AttentionParts,
    Body,
    DecoderParts,
    DeltaParts,
    LatentParts,
    LayerParts,
    LookupParts,
    Mamba2Parts,
    MlpParts,
    ShortConvParts,
    StateParts,
    SublayerParts,
    release,
)
from ..stored_linear import release_stored
from .products import MakeWeight, Product, join_products


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer. Norms are float32, the other weights have the model's type.

    Args:
      mixer: the rest of the mixer's parts; its products have lost their weights.
      inputs: of the mixer, in the order that it reads.
      gate_up: the gates first.
      mixer_scale, mlp_scale: factors of what is added to the hidden states.
    """

    input_norm: Tensor
    mixer: AttentionParts | StateParts
    inputs: Product
    output: Product
    post_mixer_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Product
    down: Product
    post_mlp_norm: Tensor | None
    mixer_scale: float
    mlp_scale: float

    @property
    def products(self) -> tuple[Product, ...]:
        return self.inputs, self.output, self.gate_up, self.down


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
    return tuple(_take_layer(layer, angles, make) for layer in parts.layers)


def check_parts(parts: DecoderParts) -> None:
    """Refuse decoders with parts that the kernels do not compute.

    Raises:
      NotRecognised: a layer has experts, wide heads, other heads than the first, or norms and
        factors that are not supported.
    """
    for layer in parts.layers:
        _check_layer(layer)
    calls = [body.call for body in parts.bodies if isinstance(body, AttentionParts)]
    if len({_list_sizes(call) for call in calls}) > 1:
        raise NotRecognised("its layers have heads of different sizes")


def list_calls(mixers: Iterable[AttentionParts | StateParts]) -> list[LayerSpec]:
    """Return the calls of attention of layers, in order."""
    return [mixer.call for mixer in mixers if isinstance(mixer, AttentionParts)]


def _list_sizes(call: LayerSpec) -> tuple[int, ...]:
    return call.num_heads, call.num_kv_heads, call.key_dim, call.value_dim


def _check_layer(layer: LayerParts) -> None:
    first, second = _find_halves(layer)
    mixer, mlp = first.body, second.body
    if isinstance(mixer, LatentParts):
        raise NotRecognised("its layers keep latents in place of keys and values")
    if not isinstance(mlp, MlpParts):
        raise NotRecognised("it has experts")
    if not mlp.has_gate or mlp.gate_scale != 1.0:
        raise NotRecognised("its networks have no gates, or scale them")
    if layer.output_scale != 1.0:
        raise NotRecognised("it scales the output of layers")
    if isinstance(mixer, AttentionParts):
        _check_attention(mixer)
    else:
        _check_state(mixer)


def _find_halves(layer: LayerParts) -> tuple[SublayerParts, SublayerParts]:
    """Return the sublayer that mixes tokens, and the network behind it.

    Raises:
      NotRecognised
    """
    if any(isinstance(each.body, LookupParts) for each in layer.sublayers):
        raise NotRecognised("every layer looks up the tokens again")
    if len(layer.sublayers) != 2 or any(each.norm is None for each in layer.sublayers):
        raise NotRecognised("its layers are not a mixer of tokens and a network")
    first, second = layer.sublayers
    return first, second


def _check_state(mixer: Body) -> None:
    match mixer:
        case DeltaParts():
            is_known = mixer.widen_decays is None
        case Mamba2Parts():
            is_known = mixer.inputs_scale is None and not mixer.has_gate_behind
        case _:
            is_known = isinstance(mixer, ShortConvParts)
    if not is_known:
        raise NotRecognised("its layers keep states of a kind that they do not know")


def _check_attention(mixer: AttentionParts) -> None:
    call = mixer.call
    if mixer.inputs_scale is not None:
        raise NotRecognised("it scales queries and keys")
    if call.shares is not None:
        raise NotRecognised("some layers read the keys and values of others")
    if max(call.key_dim, call.value_dim) > MAX_DIM:
        raise NotRecognised(f"its heads have more than {MAX_DIM} numbers")
    if mixer.value_norm is not None:
        raise NotRecognised("it normalises values")
    if (mixer.query_norm is None) != (mixer.key_norm is None):
        raise NotRecognised("it normalises queries or keys alone")


def _take_layer(
    layer: LayerParts, angles: _Angles, make: MakeWeight | None
) -> LayerWeights:
    first, second = _find_halves(layer)
    mixer, mlp = first.body, second.body
    assert isinstance(mixer, AttentionParts | StateParts), "check_parts looked at it"
    assert isinstance(mlp, MlpParts), "check_parts looked at it"
    assert first.norm is not None and second.norm is not None, "as _find_halves found"
    taken = LayerWeights(
        input_norm=first.norm,
        mixer=angles.share(mixer) if isinstance(mixer, AttentionParts) else mixer,
        inputs=join_products(mixer.inputs, mixer.order, make=make),
        output=join_products([mixer.output], make=make),
        post_mixer_norm=first.post_norm,
        mlp_norm=second.norm,
        gate_up=join_products(mlp.inputs, make=make),
        down=join_products([mlp.output], make=make),
        post_mlp_norm=second.post_norm,
        mixer_scale=first.scale,
        mlp_scale=second.scale,
    )
    taken_from = [*mixer.inputs, mixer.output, *mlp.inputs, mlp.output]
    release(taken_from)
    release_stored(taken_from)
    return taken


class _Angles:
    """Keeps the angles of layers once; most models have the same ones in all layers."""

    def __init__(self) -> None:
        self._known: list[tuple[Tensor, Tensor]] = []

    def share(self, mixer: AttentionParts) -> AttentionParts:
        for cos, sin in self._known:
            if torch.equal(cos, mixer.cos) and torch.equal(sin, mixer.sin):
                return replace(mixer, cos=cos, sin=sin)
        self._known.append((mixer.cos, mixer.sin))
        return mixer
