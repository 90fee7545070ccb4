"""Compile the kernels of attention over latents for a GPU that need not be there.

    python compile_latents.py CAPABILITY DTYPE NUM_HEADS LATENT_DIM SHARED_DIM [int8]

Prints the lines of compiling.py.
"""

from __future__ import annotations

import sys

from compiling import NUM_CORES, compile_for, make_tiles
import torch

from trioserve.kernels.triton.paged_latents import LatentLayer
from trioserve.kernels.triton.steps import Angles
from trioserve.model.attention.probe import LayerSpec


def main(
    capability: int,
    dtype: torch.dtype,
    num_heads: int,
    dim: int,
    shared_dim: int,
    *,
    is_int8: bool,
) -> None:
    compile_for(capability)
    spec = LayerSpec(
        module_name="layer",
        num_heads=num_heads,
        num_kv_heads=1,
        key_dim=dim + shared_dim,
        value_dim=dim,
        is_causal=True,
        window=None,
        scaling=0.125,
        values_in_keys=True,
    )
    kv_dtype = torch.int8 if is_int8 else dtype
    cache = torch.zeros(4, 16, 1, spec.key_dim, dtype=kv_dtype)
    scales = torch.zeros(1, 4, 1, 16) if is_int8 else None
    layer = LatentLayer(spec, cache, NUM_CORES, scales=scales, dtype=dtype)
    keys = torch.zeros(2, 1, spec.key_dim, dtype=dtype)
    query = torch.zeros(2, num_heads, spec.key_dim, dtype=dtype)
    heads = torch.zeros(2, num_heads * (128 + shared_dim), dtype=dtype)
    angles = torch.zeros(4, shared_dim)
    for tiles in make_tiles():
        layer.write(keys, keys[..., :dim], tiles)
        layer.rotate(
            *(heads, keys[:, 0], query, torch.zeros(dim), 1e-6, tiles),
            Angles(cos=angles, sin=angles, rows=tiles.positions),
        )
        layer.attend(query, tiles)


if __name__ == "__main__":
    capability, dtype, *sizes = sys.argv[1:6]
    is_int8 = "int8" in sys.argv[6:]
    main(int(capability), getattr(torch, dtype), *map(int, sizes), is_int8=is_int8)
