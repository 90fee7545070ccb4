"""Compile all kernels of one layer for a GPU that need not be there.

    python compile_layer.py CAPABILITY DTYPE DIM WINDOW

The layer runs as on a GPU, but each launch only compiles its kernel, with the arguments
that it is launched with. Prints one object of JSON a kernel:

    name, shared (bytes of shared memory), spilled (bytes a thread that registers do not hold)

Its own process, because the tests' processes have Triton's interpreter.
"""

from __future__ import annotations

import json
from pathlib import Path
import re
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from trioserve.model.attention.probe import LayerSpec
from trioserve.model.triton.paged import PagedLayer, Tiles
from trioserve.model.triton.steps import Angles, RotaryLayer, normalize, weigh_gates

NUM_HEADS, NUM_KV_HEADS = 9, 3
# Enough of an H200's to split the keys of a few decodes.
NUM_CORES = 132


class NoDevice:
    """What Triton asks of a device to compile for it."""

    def __init__(self, capability: int):
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(kernel: JITFunction[Any], grid: Any) -> Any:
    def launch(*args: object, **constants: object) -> None:
        compiled = kernel.run(*args, grid=grid, warmup=True, **constants)
        found = {
            "name": kernel.__name__,
            "shared": compiled.metadata.shared,
            "spilled": count_spilled(compiled.asm["cubin"]),
        }
        print(json.dumps(found), flush=True)

    return launch


def count_spilled(binary: bytes) -> int:
    with TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(binary)
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", path]
        text = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"STACK:(\d+)", text.stdout)
    assert found is not None, text.stdout
    return int(found[1])


def main(capability: int, dtype: torch.dtype, dim: int, window: int | None) -> None:
    triton.runtime.driver.set_active(NoDevice(capability))
    JITFunction.__getitem__ = compile_only
    has_all = window is not None
    spec = LayerSpec(
        module_name="layer",
        num_heads=NUM_HEADS,
        num_kv_heads=NUM_KV_HEADS,
        key_dim=dim,
        value_dim=dim,
        is_causal=True,
        window=window,
        scaling=0.125,
        softcap=50.0 if has_all else None,
        sinks=torch.zeros(NUM_HEADS, dtype=dtype) if has_all else None,
    )
    cache = torch.zeros(4, 16, NUM_KV_HEADS, 2 * dim, dtype=dtype)
    paged = PagedLayer(spec, cache, NUM_CORES)
    one_tile = torch.zeros(1, 4, dtype=torch.int32)
    places = torch.zeros(2, dtype=torch.int64)
    tiles = Tiles(
        tables=torch.zeros(2, 4, dtype=torch.int64),
        slots=places,
        positions=places,
        decodes=one_tile,
        chunks=one_tile,
    )
    many = Tiles(
        tables=tiles.tables,
        slots=places,
        positions=places,
        decodes=one_tile.repeat(2 * NUM_CORES, 1),
        chunks=one_tile[:0],
    )
    size = NUM_HEADS * dim
    hidden = torch.zeros(2, size, dtype=dtype)
    heads = torch.zeros(2, NUM_HEADS, dim, dtype=dtype)
    keys = heads[:, :NUM_KV_HEADS]

    paged.write(keys, keys, tiles)
    paged.attend(heads, tiles)
    paged.attend(heads, many)
    weight = torch.zeros(dim) if has_all else None
    rotary_dim = dim // 2 if has_all else dim
    angles = torch.zeros(4, rotary_dim)
    qkv = torch.zeros(2, (NUM_HEADS + 2 * NUM_KV_HEADS) * dim, dtype=dtype)
    RotaryLayer(paged, rotary_dim, weight, weight, 1e-5).run(
        qkv, tiles, Angles(cos=angles, sin=angles, rows=places)
    )
    factors = torch.zeros(size)
    added_weight = factors if has_all else None
    normalize(hidden, factors, 1e-5)
    normalize(hidden, factors, 1e-5, added=hidden, added_weight=added_weight)
    normalize(hidden, None, 1e-5, added=hidden)
    for activation in ("silu", "gelu_tanh", "gelu", "relu") if has_all else ("silu",):
        weigh_gates(torch.zeros(2, 4 * size, dtype=dtype), activation)


if __name__ == "__main__":
    capability, dtype, dim, window = sys.argv[1:]
    main(int(capability), getattr(torch, dtype), int(dim), int(window) or None)
