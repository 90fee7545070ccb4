"""The layers of a decoder, found among its modules."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ...attention.probe import LayerSpec
from ..choice import NotRecognised
from ..description import (
    AttentionParts,
    Body,
    LatentParts,
    LayerParts,
    MixtureParts,
    MlpParts,
    SublayerParts,
)
from .attention import find_attention
from .beside import find_beside
from .experts import find_mixture, find_mlp, list_activations
from .formulas import name_activation
from .given import Angles
from .latents import find_latents
from .lookups import find_lookup, list_lookup_activations
from .norms import find_first_norm, find_norms
from .products import get_part
from .states import find_state

# What mixes tokens, with the attribute of a layer for the factor of its output.
_MIXERS = {
    "linear_attn": "",
    "conv": "",
    "mamba": "ssm_out_multiplier",
    "self_attn": "attn_out_multiplier",
}

# The attribute of a layer that is one sublayer, of any kind.
_ONLY = "mixer"


def find_layers(
    layers: Sequence[nn.Module],
    calls: Sequence[LayerSpec],
    rotary: Sequence[Angles],
) -> tuple[LayerParts, ...]:
    """Find the parts of layers.

    Args:
      calls: their calls of attention, in order.
      rotary: the angles of each layer.

    Raises:
      NotRecognised
    """
    remaining = deque(calls)
    found = tuple(
        _find_layer(layer, remaining, angles) for layer, angles in zip(layers, rotary)
    )
    if remaining:
        raise NotRecognised("a layer calls attention more than once")
    return found


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


def _find_layer(layer: Any, calls: deque[LayerSpec], angles: Angles) -> LayerParts:
    if hasattr(layer, _ONLY):
        return LayerParts(sublayers=tuple(_find_only(layer, calls, angles)))
    norms = find_norms(layer)
    size = len(norms.before_network)
    scale = float(getattr(layer, "residual_multiplier", 1.0))
    mlp: Body = _find_mlp(layer, size)
    if isinstance(mlp, MlpParts):
        mlp = find_beside(layer, mlp, size) or mlp
    network = SublayerParts(
        norm=norms.before_network,
        body=mlp,
        post_norm=norms.behind_network,
        scale=scale * _find_output_scale(_list_mlps(layer)),
    )
    mixers = _find_mixers(layer, calls, angles, scale, norms.behind_mixer)
    lookup = find_lookup(layer, size)
    return LayerParts(
        sublayers=(*mixers, network, *([] if lookup is None else [lookup])),
        output_scale=float(getattr(layer, "layer_scalar", 1.0)),
    )


def _find_mixers(
    layer: Any,
    calls: deque[LayerSpec],
    angles: Angles,
    scale: float,
    post_norm: Tensor | None,
) -> list[SublayerParts]:
    """Find the sublayers that mix tokens; several of them read the same."""
    norm: Tensor | None = find_first_norm(layer)
    found: list[SublayerParts] = []
    for name, multiplier in _MIXERS.items():
        mixer = getattr(layer, name, None)
        if mixer is None:
            continue
        if found and post_norm is not None:
            raise NotRecognised("the sum of several mixers is normalized")
        factor = float(getattr(layer, "attention_in_multiplier", 1.0))
        found.append(
            SublayerParts(
                norm=None if found else norm,
                body=find_state(mixer) or _attend(mixer, calls, angles, factor),
                post_norm=post_norm,
                scale=scale * float(getattr(layer, multiplier, 1.0)),
            )
        )
    if not found:
        raise NotRecognised(f"{type(layer).__name__} has none of {', '.join(_MIXERS)}")
    return found


def _attend(
    mixer: nn.Module,
    calls: deque[LayerSpec],
    angles: Angles,
    factor: float = 1.0,
) -> AttentionParts | LatentParts:
    if not calls:
        raise NotRecognised("not every layer calls attention once")
    call = calls.popleft()
    latents = find_latents(mixer, call, angles)
    return latents or find_attention(mixer, call, angles, factor)


def _find_only(
    layer: Any, calls: deque[LayerSpec], angles: Angles
) -> Iterable[SublayerParts]:
    """Find the sublayers of a layer that has one mixer, network or mixture."""
    norm, mixer = find_first_norm(layer), getattr(layer, _ONLY)
    body: Body | None = find_state(mixer)
    if body is None and hasattr(mixer, "o_proj"):
        body = _attend(mixer, calls, angles)
    if body is None:
        body = find_mixture(mixer, len(norm)) or find_mlp(mixer)
    if isinstance(body, MixtureParts) and body.output is not None:
        # The expert for all tokens reads what the router reads.
        shared, body = body.shared, replace(body, shared=None)
        if body.shared_gate is not None:
            raise NotRecognised("a gate weighs an expert beside a latent")
        yield SublayerParts(norm=norm, body=body)
        if shared is not None:
            yield SublayerParts(norm=None, body=shared)
        return
    yield SublayerParts(norm=norm, body=body)


def _list_mlps(layer: Any) -> list[Any]:
    """Return a layer's feed-forward network or mixture; behind it, an expert for all."""
    if (only := getattr(layer, _ONLY, None)) is not None:
        is_network = hasattr(only, "experts") or hasattr(only, "down_proj")
        return [only] if is_network else []
    mixture = getattr(layer, "block_sparse_moe", None)
    shared = getattr(layer, "shared_mlp", None)
    if mixture is None and shared is None:
        return [get_part(layer, "mlp", "feed_forward")]
    return [each for each in (mixture, shared) if each is not None]


def _find_output_scale(mlps: Sequence[Any]) -> float:
    """Return the factor of what a network adds."""
    scales = {float(getattr(mlp, "down_multiplier", 1.0)) for mlp in mlps}
    if len(scales) != 1:
        raise NotRecognised("its experts scale their outputs differently")
    return scales.pop()


def _find_mlp(layer: nn.Module, size: int) -> MlpParts | MixtureParts:
    mlp, *shared = _list_mlps(layer)
    if shared:
        mixture = find_mixture(mlp, size, shared[0])
        if mixture is None:
            raise NotRecognised(f"{type(layer).__name__} has two networks")
        return mixture
    return find_mixture(mlp, size) or find_mlp(mlp)
