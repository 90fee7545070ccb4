"""The parts of decoders that the kernels for GPUs compute. This needs no triton."""

from __future__ import annotations

from ....kernels.triton.widths import MAX_LATENT_DIM, MAX_SHARED_DIM
from ...attention.paged_triton import MAX_DIM
from ...attention.probe import LayerSpec
from ..choice import NotRecognised
from ..description import AttentionParts, DecoderParts, LatentParts


def check_parts(parts: DecoderParts) -> None:
    """Refuse decoders with parts that the kernels do not compute.

    Raises:
      NotRecognised: a layer has wide heads, or norms of queries or keys alone.
    """
    for body in parts.bodies:
        if isinstance(body, AttentionParts):
            _check_attention(body)
        elif isinstance(body, LatentParts):
            _check_latents(body.call)


def _check_latents(call: LayerSpec) -> None:
    shared_dim = call.key_dim - call.value_dim
    if call.value_dim > MAX_LATENT_DIM or shared_dim > MAX_SHARED_DIM:
        raise NotRecognised("its latents or their shared keys have too many numbers")
    if call.needs_scores:
        raise NotRecognised("it changes the scores of latents")


def _check_attention(mixer: AttentionParts) -> None:
    call = mixer.call
    if max(call.key_dim, call.value_dim) > MAX_DIM:
        raise NotRecognised(f"its heads have more than {MAX_DIM} numbers")
    has_key_norm = mixer.key_norm is not None
    if call.shares is None and (mixer.query_norm is not None) != has_key_norm:
        raise NotRecognised("it normalises queries or keys alone")
