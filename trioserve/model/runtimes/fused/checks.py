"""The parts of decoders that the kernels for GPUs compute. This needs no triton."""

from __future__ import annotations

from ....kernels.triton.widths import MAX_LATENT_DIM, MAX_SHARED_DIM
from ...attention.paged_triton import MAX_DIM
from ...attention.probe import LayerSpec
from ..choice import NotRecognised
from ..description import (
    AttentionParts,
    BesideParts,
    DecoderParts,
    LatentParts,
    LayerParts,
    LookupParts,
)


def check_parts(parts: DecoderParts) -> None:
    """Refuse decoders with parts that the kernels do not compute.

    Raises:
      NotRecognised: a layer has wide heads, other heads than the first, or norms, states and
        networks that are not supported.
    """
    for layer in parts.layers:
        _check_layer(layer)
    kinds = AttentionParts | LatentParts
    calls = [body.call for body in parts.bodies if isinstance(body, kinds)]
    if len({_list_sizes(call) for call in calls}) > 1:
        raise NotRecognised("its layers have heads of different sizes")


def _list_sizes(call: LayerSpec) -> tuple[int, ...]:
    return call.num_heads, call.num_kv_heads, call.key_dim, call.value_dim


def _check_layer(layer: LayerParts) -> None:
    if layer.output_scale != 1.0:
        raise NotRecognised("it scales the output of layers")
    for sublayer in layer.sublayers:
        match sublayer.body:
            case AttentionParts() as mixer:
                _check_attention(mixer)
            case LatentParts() as mixer:
                _check_latents(mixer.call)
            case LookupParts():
                raise NotRecognised("every layer looks up the tokens again")
            case BesideParts():
                raise NotRecognised("its experts stand beside another network")


def _check_latents(call: LayerSpec) -> None:
    shared_dim = call.key_dim - call.value_dim
    if call.value_dim > MAX_LATENT_DIM or shared_dim > MAX_SHARED_DIM:
        raise NotRecognised("its latents or their shared keys have too many numbers")
    if call.needs_scores:
        raise NotRecognised("it changes the scores of latents")


def _check_attention(mixer: AttentionParts) -> None:
    call = mixer.call
    if call.shares is not None:
        raise NotRecognised("some layers read the keys and values of others")
    if max(call.key_dim, call.value_dim) > MAX_DIM:
        raise NotRecognised(f"its heads have more than {MAX_DIM} numbers")
    if mixer.value_norm is not None:
        raise NotRecognised("it normalises values")
    if (mixer.query_norm is None) != (mixer.key_norm is None):
        raise NotRecognised("it normalises queries or keys alone")
