"""The layers of a decoder, found among its modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from ...attention.probe import LayerSpec
from ..choice import NotRecognised
from ..description import (
    AttentionParts,
    LayerParts,
    MixtureParts,
    MlpParts,
    StateParts,
)
from .attention import find_attention
from .beside import find_beside
from .experts import find_mixture, find_mlp, list_activations
from .formulas import find_norm, name_activation
from .lookups import find_lookup, list_lookup_activations
from .products import get_part
from .states import find_state


def find_layers(
    layers: Sequence[nn.Module],
    calls: Sequence[LayerSpec],
    rotary: Sequence[tuple[Tensor, Tensor]],
) -> tuple[LayerParts, ...]:
    """Find the parts of layers.

    Args:
      calls: their calls of attention, in order.
      rotary: for each layer, cosines and sines, (max_model_len, rotary_dim) float32 both

    Raises:
      NotRecognised
    """
    mixers = _find_mixers(layers, calls, rotary)
    return tuple(_find_layer(layer, mixer) for layer, mixer in zip(layers, mixers))


def find_first_norm(layer: nn.Module) -> Tensor:
    """Return the weight of the norm before a layer, (hidden_size,) float32.

    Raises:
      NotRecognised
    """
    return find_norm(get_part(layer, "input_layernorm", "operator_norm"))


def find_activation(layers: Sequence[nn.Module]) -> str:
    """Return the name of the activation that feed-forward networks share.

    Raises:
      NotRecognised
    """
    return name_activation(
        function
        for layer in layers
        for function in (
            *(each for mlp in _list_mlps(layer) for each in list_activations(mlp)),
            *(list_activations(layer.experts) if hasattr(layer, "router") else ()),
            *list_lookup_activations(layer),
        )
    )


def _find_mixers(
    layers: Sequence[nn.Module],
    calls: Sequence[LayerSpec],
    rotary: Sequence[tuple[Tensor, Tensor]],
) -> Iterator[AttentionParts | StateParts]:
    """Find what mixes the tokens of a sequence in each layer."""
    remaining = list(calls)
    for layer, angles in zip(layers, rotary):
        state = find_state(layer)
        if state is not None:
            yield state
            continue
        attention = get_part(layer, "self_attn")
        if not remaining:
            raise NotRecognised("not every layer calls attention once")
        yield find_attention(attention, remaining.pop(0), angles)
    if remaining:
        raise NotRecognised("a layer calls attention beside a state")


def _find_layer(layer: nn.Module, mixer: AttentionParts | StateParts) -> LayerParts:
    # Models with four norms normalize the output of attention, too, so that the name of
    # the second norm of others means something else.
    has_four = hasattr(layer, "pre_feedforward_layernorm")
    second = "post_attention_layernorm", "pre_ff_layernorm", "ffn_norm"
    after_attention = find_norm(get_part(layer, *second))
    return LayerParts(
        input_norm=find_first_norm(layer),
        mixer=mixer,
        post_mixer_norm=after_attention if has_four else None,
        mlp_norm=(
            find_norm(get_part(layer, "pre_feedforward_layernorm"))
            if has_four
            else after_attention
        ),
        mlp=_find_mlp(layer, len(after_attention)),
        post_mlp_norm=(
            find_norm(get_part(layer, "post_feedforward_layernorm"))
            if has_four
            else None
        ),
        beside=find_beside(layer, len(after_attention)),
        lookup=find_lookup(layer, len(after_attention)),
        output_scale=float(getattr(layer, "layer_scalar", 1.0)),
    )


def _list_mlps(layer: Any) -> list[Any]:
    """Return a layer's feed-forward network or mixture; behind it, an expert for all."""
    mixture = getattr(layer, "block_sparse_moe", None)
    shared = getattr(layer, "shared_mlp", None)
    if mixture is None and shared is None:
        return [get_part(layer, "mlp", "feed_forward")]
    return [each for each in (mixture, shared) if each is not None]


def _find_mlp(layer: nn.Module, size: int) -> MlpParts | MixtureParts:
    mlp, *shared = _list_mlps(layer)
    if shared:
        mixture = find_mixture(mlp, size, shared[0])
        if mixture is None:
            raise NotRecognised(f"{type(layer).__name__} has two networks")
        return mixture
    return find_mixture(mlp, size) or find_mlp(mlp)
