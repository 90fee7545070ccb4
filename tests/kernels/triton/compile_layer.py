"""Compile all kernels of one layer for a GPU that need not be there.

    python compile_layer.py CAPABILITY DTYPE DIM WINDOW [int8] [sizes]

With int8, keys and values are kept in 8 bits, and other kernels than theirs are left out. With
sizes, attention is compiled in all sizes that a device may choose, and nothing else; four heads of
queries share one of keys.

Prints the lines of compiling.py.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
import sys

from compiling import NUM_CORES, compile_for, make_tiles
import torch

from trioserve.kernels.triton.adapters import change_outputs, cut_blocks
from trioserve.kernels.triton.measure_sizes import list_layer_candidates
from trioserve.kernels.triton.paged import PagedLayer
from trioserve.kernels.triton.steps import Angles, RotaryLayer, normalize, weigh_gates
from trioserve.kernels.triton.tiles import AdapterTiles, count_adapter_tokens
from trioserve.model.attention.probe import LayerSpec

NUM_HEADS, NUM_KV_HEADS = 9, 3


def main(
    capability: int,
    dtype: torch.dtype,
    dim: int,
    window: int | None,
    *,
    has_scales: bool = False,
    has_sizes: bool = False,
) -> None:
    compile_for(capability)
    has_all = window is not None
    num_heads = 4 * NUM_KV_HEADS if has_sizes else NUM_HEADS
    spec = LayerSpec(
        module_name="layer",
        num_heads=num_heads,
        num_kv_heads=NUM_KV_HEADS,
        key_dim=dim,
        value_dim=dim,
        is_causal=True,
        window=window,
        scaling=0.125,
        softcap=50.0 if has_all else None,
        sinks=torch.zeros(num_heads, dtype=dtype) if has_all else None,
    )
    cache_dtype = torch.int8 if has_scales else dtype
    cache = torch.zeros(4, 16, NUM_KV_HEADS, 2 * dim, dtype=cache_dtype)
    scales = torch.zeros(2, 4, NUM_KV_HEADS, 16) if has_scales else None
    paged = PagedLayer(spec, cache, NUM_CORES, scales=scales, dtype=dtype)
    tiles, many = make_tiles(paged.chunk_queries)
    size = NUM_HEADS * dim
    hidden = torch.zeros(2, size, dtype=dtype)
    heads = torch.zeros(2, num_heads, dim, dtype=dtype)
    keys = heads[:, :NUM_KV_HEADS]

    if has_sizes:
        for rows in (paged.chunk_rows, paged.long_rows):
            chunk = replace(
                tiles, decodes=tiles.chunks[:0], num_queries=paged.count_queries(rows)
            )
            for each in list_layer_candidates(paged, rows, capability):
                replace(paged, measured={rows: each}).attend(heads, chunk)
        rows = paged.decode_rows
        for each in list_layer_candidates(paged, rows, capability):
            replace(paged, measured={rows: each}).attend(heads, many)
        return
    paged.write(keys, keys, tiles)
    paged.attend(heads, tiles)
    paged.attend(heads, many)
    weight = torch.zeros(dim) if has_all else None
    rotary_dim = dim // 2 if has_all else dim
    angles = torch.zeros(4, rotary_dim)
    qkv = torch.zeros(2, (NUM_HEADS + 2 * NUM_KV_HEADS) * dim, dtype=dtype)
    RotaryLayer(paged, rotary_dim, weight, weight, 1e-5, weight, has_all).run(
        qkv, tiles, Angles(cos=angles, sin=angles, rows=tiles.positions)
    )
    if has_scales:
        return
    factors = torch.zeros(size)
    added_weight = factors if has_all else None
    normalize(hidden, factors, 1e-5)
    normalize(hidden, factors, 1e-5, added=hidden, added_weight=added_weight)
    normalize(hidden, None, 1e-5, added=hidden)
    if has_all:
        # Llama 405B's.
        wide = torch.zeros(2, 16_384, dtype=dtype)
        normalize(wide, factors, 1e-5, added=wide, added_weight=factors)
    gates, numbers = torch.zeros(2, 4 * size, dtype=dtype).chunk(2, dim=1)
    others = ("gelu_tanh", "gelu", "relu", "sigmoid") if has_all else ()
    for activation in ("silu", *others):
        weigh_gates(gates, numbers, activation)
    # A table of one product, as when an adapter is tried; and one of two.
    tables = torch.zeros(2, 6, dtype=torch.int64), torch.zeros(2, 16, dtype=torch.int64)
    for has_chunks, table in product((False, True), tables):
        change_outputs(
            hidden,
            qkv,
            table=table,
            tiles=AdapterTiles(
                numbers=torch.zeros(1, 3, dtype=torch.int32),
                num_tokens=count_adapter_tokens(has_chunks),
            ),
            blocks=cut_blocks([(0, 16), (1, 16)], torch.device("cpu")),
            bias=qkv[0] if has_all else None,
            num_modules=2,
            width=256,
            num_cores=NUM_CORES,
        )


if __name__ == "__main__":
    capability, dtype, dim, window, *rest = sys.argv[1:]
    main(
        *(int(capability), getattr(torch, dtype), int(dim), int(window) or None),
        has_scales="int8" in rest,
        has_sizes="sizes" in rest,
    )
