"""The formulas of layers that keep latents, for the native kernels."""

from __future__ import annotations

from collections.abc import Callable
import ctypes

from torch import Tensor

from ....kernels.structs import LatentSpec, MatrixSpec
from ..description import LatentParts
from .packer import Packer, Rows, take


def make_latent(
    mixer: LatentParts, packer: Packer, find_rows: Callable[[Tensor], Rows]
) -> tuple[LatentSpec, list[object]]:
    """Pack the products of latents.

    Args:
      find_rows: returns the rows of a product's weight.

    Returns:
      the structure, and the arrays to which it points
    """
    projection = mixer.projection
    heads = projection.weight.detach().unflatten(0, (projection.num_heads, -1))
    own_dim = projection.key_dim
    absorb, expand = (
        (MatrixSpec * projection.num_heads)(*(packer.pack([each]) for each in part))
        for part in (
            # (num_heads, rank, own_dim) and (num_heads, value_dim, rank)
            heads[:, :own_dim].transpose(1, 2).contiguous(),
            heads[:, own_dim:].contiguous(),
        )
    )
    queries = MatrixSpec()
    if mixer.query is not None:
        rows = find_rows(mixer.query.weight)
        if mixer.query_order is not None:
            rows = take(rows, mixer.query_order.numpy())
        queries = packer.pack(rows)
    spec = LatentSpec(
        queries=queries,
        absorb=ctypes.addressof(absorb),
        expand=ctypes.addressof(expand),
        query_norm=packer.point(mixer.query_norm),
        latent_norm=packer.point(mixer.latent_norm),
        num_query_inputs=0 if mixer.query is None else mixer.query.in_features,
        own_dim=own_dim,
        shared_dim=mixer.call.key_dim - projection.rank,
        epsilon=mixer.epsilon,
    )
    return spec, [absorb, expand]
