"""Attention over latents, with its cache."""

from __future__ import annotations

import torch
from torch import Tensor

from ....kernels.triton.paged_latents import LatentLayer
from ....kernels.triton.steps import Angles, normalize
from ....kernels.triton.tiles import Tiles
from ..description import LatentParts
from .mixers import Multiply
from .products import Product


class LatentAttention:
    """A Mixer: attention whose heads share one latent a token.

    Args:
      weight: of the product of latents, (num_heads * (own_dim + value_dim), rank)
      query: the product of queries; None if it is among the inputs.
    """

    states: tuple[Tensor, ...] = ()

    def __init__(
        self,
        parts: LatentParts,
        weight: Tensor,
        query: Product | None,
        paged: LatentLayer,
    ) -> None:
        self._parts = parts
        self._query = query
        self._paged = paged
        heads = weight.unflatten(0, (parts.call.num_heads, -1))
        own_dim = parts.projection.key_dim
        # (num_heads, own_dim, rank) and (num_heads, rank, value_dim)
        self._absorb = heads[:, :own_dim]
        self._expand = heads[:, own_dim:].transpose(1, 2)

    def run(
        self, inputs: Tensor, tiles: Tiles, angles: Angles | None, multiply: Multiply
    ) -> Tensor:
        parts, call = self._parts, self._parts.call
        if angles is None:
            angles = Angles(cos=parts.cos, sin=parts.sin, rows=tiles.positions)
        size = inputs.shape[1] - call.key_dim
        heads, low = inputs[:, :size], inputs[:, size:]
        if self._query is not None:
            narrow = normalize(heads.contiguous(), parts.query_norm, parts.epsilon)
            assert narrow is not None, "there is a norm"
            heads = multiply(self._query, narrow)
        query = inputs.new_empty((len(inputs), call.num_heads, call.key_dim))
        own = heads.unflatten(1, (call.num_heads, -1))[..., : self._absorb.shape[1]]
        absorbed = torch.bmm(own.transpose(0, 1), self._absorb)
        query[..., : call.value_dim] = absorbed.transpose(0, 1)
        self._paged.rotate(
            *(heads, low, query, parts.latent_norm, parts.epsilon, tiles, angles)
        )
        attended = self._paged.attend(query, tiles)
        values = torch.bmm(attended.transpose(0, 1), self._expand)
        return values.transpose(0, 1).flatten(1)
