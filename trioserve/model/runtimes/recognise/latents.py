"""Attention over latents, found among the modules of a decoder's layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...attention.latents import find_projection
from ...attention.probe import LayerSpec
from ..choice import NotRecognised
from ..description import LatentParts
from .formulas import find_norm, read_epsilon
from .given import Angles
from .products import check_linear, check_shape, get_part


def find_latents(attention: Any, call: LayerSpec, angles: Angles) -> LatentParts | None:
    """Find the parts of attention over latents; None if it keeps keys and values.

    Args:
      call: its call.
      angles: its rotary angles.

    Raises:
      NotRecognised
    """
    projection = find_projection(attention)
    if projection is None:
        return None
    rank, own_dim = projection.rank, projection.key_dim
    shared_dim = call.key_dim - rank
    low = check_linear(get_part(attention, "kv_a_proj_with_mqa"), "kv_a_proj_with_mqa")
    latent_norm = get_part(attention, "kv_a_layernorm")
    query = norm = None
    first = getattr(attention, "q_proj", None)
    if first is None:
        first = get_part(attention, "q_a_proj")
        norm = get_part(attention, "q_a_layernorm")
        if read_epsilon(norm) != read_epsilon(latent_norm):
            raise NotRecognised("its norms have different epsilons")
        query = check_linear(get_part(attention, "q_b_proj"), "q_b_proj")
    first = check_linear(first, "the product of queries")
    pairs = None
    if angles.cos.shape[1] and _has_neighbours(attention, angles):
        pairs = torch.arange(shared_dim).view(-1, 2).T.flatten()
    heads = _order_heads(call.num_heads, own_dim, shared_dim, pairs)
    key = _order_heads(1, rank, shared_dim, pairs)
    before = heads if query is None else torch.arange(first.out_features)
    return LatentParts(
        call=call,
        inputs=(first, low),
        order=None if pairs is None else torch.cat((before, len(before) + key)),
        query=query,
        query_order=None if pairs is None or query is None else heads,
        query_norm=None if norm is None else find_norm(norm, first.out_features),
        latent_norm=find_norm(latent_norm, rank),
        epsilon=read_epsilon(latent_norm),
        projection=projection,
        cos=angles.cos,
        sin=angles.sin,
        output=check_linear(get_part(attention, "o_proj"), "o_proj"),
    )


def check_latents(mixer: LatentParts, dtype: torch.dtype) -> None:
    """Refuse latents of unexpected sizes, because the kernels trust their pointers.

    Raises:
      NotRecognised
    """
    call, projection = mixer.call, mixer.projection
    shared_dim = call.key_dim - projection.rank
    num_queries = call.num_heads * (projection.key_dim + shared_dim)
    first, low = mixer.inputs
    if mixer.query is not None:
        check_shape(
            [mixer.query], first.out_features, num_queries, dtype, has_bias=False
        )
    if (
        not call.is_causal
        or (call.window, call.chunk, call.shares) != (None, None, None)
        or (call.num_kv_heads, call.value_dim) != (1, projection.rank)
        or mixer.cos.shape[1] not in (0, shared_dim)
        or low.out_features != call.key_dim
        or (mixer.query is None and first.out_features != num_queries)
        or mixer.output.in_features != call.num_heads * projection.value_dim
        or projection.weight.dtype != dtype
    ):
        raise NotRecognised("its latents have unexpected sizes")


def _has_neighbours(attention: Any, angles: Angles) -> bool:
    """Return whether rotated pairs are neighbours, in place of half a head apart."""
    if angles.are_complex:
        return True
    told: bool | None = getattr(attention.config, "rope_interleave", None)
    if told is None:
        raise NotRecognised("its configuration does not tell the pairs it rotates")
    return told


def _order_heads(
    num_heads: int, own_dim: int, shared_dim: int, pairs: Tensor | None
) -> Tensor:
    """Return the order of outputs in which the numbers of a pair are half of a head apart."""
    places = torch.arange(num_heads * (own_dim + shared_dim)).view(num_heads, -1)
    if pairs is None:
        return places.flatten()
    own, shared = places.split((own_dim, shared_dim), dim=1)
    return torch.cat((own, shared[:, pairs]), dim=1).flatten()
