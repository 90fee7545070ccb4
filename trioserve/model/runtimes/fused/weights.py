"""The weights of a decoder's layers. Products that read the same input are one product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...attention.paged_triton import MAX_DIM
from ...attention.probe import LayerSpec
from ..choice import NotRecognised
from ..description import AttentionParts, DecoderParts, LayerParts, MlpParts, release


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer. Norms and angles are float32, the others have the model's type.

    Args:
      qkv: (heads of queries, keys and values, hidden_size)
      cos, sin: (max_model_len, rotary_dim)
      gate_up: (2 * intermediate_size, hidden_size), the gates first
    """

    attention: LayerSpec
    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    cos: Tensor
    sin: Tensor
    output: Tensor
    output_bias: Tensor | None
    post_mixer_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    post_mlp_norm: Tensor | None


def take_weights(parts: DecoderParts) -> tuple[LayerWeights, ...]:
    """Take the weights of layers from their modules, which lose them.

    One layer after the other, so that a large model is never on the device twice.

    Raises:
      NotRecognised: see check_parts; no module has lost anything.
    """
    check_parts(parts)
    angles = _Angles()
    return tuple(_take_layer(layer, angles) for layer in parts.layers)


def check_parts(parts: DecoderParts) -> None:
    """Refuse decoders with parts that the kernels do not compute.

    Raises:
      NotRecognised: a layer has experts, wide heads, other heads than the first, or norms and
        factors that are not supported.
    """
    if parts.residual_scale != 1.0:
        raise NotRecognised("it scales what its layers add")
    if len({_check_layer(layer) for layer in parts.layers}) > 1:
        raise NotRecognised("its layers have heads of different sizes")


def _check_layer(layer: LayerParts) -> tuple[int, ...]:
    """Refuse what the kernels do not compute; returns the sizes of the layer's heads."""
    mixer = layer.mixer
    if not isinstance(mixer, AttentionParts):
        raise NotRecognised("its layers keep states in place of keys and values")
    if not isinstance(layer.mlp, MlpParts) or layer.beside is not None:
        raise NotRecognised("it has experts")
    if mixer.has_gate:
        raise NotRecognised("gates weigh the output of its attention")
    if layer.lookup is not None:
        raise NotRecognised("every layer looks up the tokens again")
    if mixer.call.shares is not None:
        raise NotRecognised("some layers read the keys and values of others")
    if max(mixer.call.key_dim, mixer.call.value_dim) > MAX_DIM:
        raise NotRecognised(f"its heads have more than {MAX_DIM} numbers")
    if mixer.value_norm is not None or layer.output_scale != 1.0:
        raise NotRecognised("it normalises values, or scales the output of layers")
    if (mixer.query_norm is None) != (mixer.key_norm is None):
        raise NotRecognised("it normalises queries or keys alone")
    call = mixer.call
    return call.num_heads, call.num_kv_heads, call.key_dim, call.value_dim


def _take_layer(layer: LayerParts, angles: _Angles) -> LayerWeights:
    mixer, mlp = layer.mixer, layer.mlp
    assert isinstance(mixer, AttentionParts), "take_weights has looked at all layers"
    assert isinstance(mlp, MlpParts), "take_weights has looked at all layers"
    cos, sin = angles.share(mixer.cos, mixer.sin)
    taken = LayerWeights(
        attention=mixer.call,
        input_norm=layer.input_norm,
        qkv=_join([each.weight for each in mixer.inputs]),
        qkv_bias=_join_biases(mixer.inputs),
        query_norm=mixer.query_norm,
        key_norm=mixer.key_norm,
        cos=cos,
        sin=sin,
        output=mixer.output.weight.detach(),
        output_bias=_join_biases([mixer.output]),
        post_mixer_norm=layer.post_mixer_norm,
        mlp_norm=layer.mlp_norm,
        gate_up=_join([each.weight for each in mlp.gate_up]),
        down=mlp.down.weight.detach(),
        post_mlp_norm=layer.post_mlp_norm,
    )
    release([*mixer.inputs, mixer.output, *mlp.gate_up, mlp.down])
    return taken


def _join(weights: Sequence[Tensor]) -> Tensor:
    return (weights[0] if len(weights) == 1 else torch.cat([*weights])).detach()


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


class _Angles:
    """Keeps the angles of layers once; most models have the same ones in all layers."""

    def __init__(self) -> None:
        self._known: list[tuple[Tensor, Tensor]] = []

    def share(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        for known in self._known:
            if torch.equal(known[0], cos) and torch.equal(known[1], sin):
                return known
        self._known.append((cos, sin))
        return cos, sin
