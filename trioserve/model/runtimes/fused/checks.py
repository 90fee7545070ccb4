"""The parts of decoders that the kernels for GPUs compute. This needs no triton."""

from __future__ import annotations

from ....kernels.triton.widths import MAX_LATENT_DIM, MAX_SHARED_DIM
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
    MixtureParts,
    MlpParts,
    ShortConvParts,
    SublayerParts,
)


def check_parts(parts: DecoderParts) -> None:
    """Refuse decoders with parts that the kernels do not compute.

    Raises:
      NotRecognised: a layer has wide heads, other heads than the first, or norms, factors and
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
    first, second = find_halves(layer)
    mixer, mlp = first.body, second.body
    _check_network(mlp)
    if layer.output_scale != 1.0:
        raise NotRecognised("it scales the output of layers")
    if isinstance(mixer, AttentionParts):
        _check_attention(mixer)
    elif isinstance(mixer, LatentParts):
        _check_latents(mixer.call)
    else:
        _check_state(mixer)


def find_halves(layer: LayerParts) -> tuple[SublayerParts, SublayerParts]:
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


def _check_latents(call: LayerSpec) -> None:
    shared_dim = call.key_dim - call.value_dim
    if call.value_dim > MAX_LATENT_DIM or shared_dim > MAX_SHARED_DIM:
        raise NotRecognised("its latents or their shared keys have too many numbers")
    if call.needs_scores:
        raise NotRecognised("it changes the scores of latents")


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


def _check_network(body: Body) -> None:
    if isinstance(body, MixtureParts):
        if body.output is not None:
            raise NotRecognised(
                "its experts read fewer numbers than hidden states have"
            )
        networks = [] if body.shared is None else [body.shared]
    elif isinstance(body, MlpParts):
        networks = [body]
    else:
        raise NotRecognised("its experts stand beside another network")
    if any(each.gate_scale != 1.0 for each in networks):
        raise NotRecognised("its networks scale their gates")
