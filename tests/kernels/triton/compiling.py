"""Compile kernels for a GPU that need not be there.

Code runs as on a GPU, but each launch only compiles its kernel, with the arguments that it is
launched with. Prints one object of JSON a kernel:

    name, shared (bytes of shared memory), spilled (bytes a thread that registers do not hold),
    hash (of what was compiled), follows (it may begin before kernels in front of it are done),
    waits (for them), reads_before and writes_before (it waits; or it returns before)

It is for processes of their own, because the tests' processes have Triton's interpreter.
"""

from __future__ import annotations

import json
from pathlib import Path
import re
import subprocess
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from trioserve.kernels.triton.tiles import Tiles

# Enough of an H200's to split the keys of a few decodes.
NUM_CORES = 132


def compile_for(capability: int) -> None:
    """Let launches compile for a GPU of this compute capability, times ten."""
    triton.runtime.driver.set_active(_NoDevice(capability))
    JITFunction.__getitem__ = _compile_only


def make_tiles(num_queries: int = 1) -> tuple[Tiles, Tiles]:
    """Make a decode whose keys are split beside a chunk, and decodes that fill the device.

    Args:
      num_queries: most tokens of a tile of the chunk.
    """
    one_tile = torch.zeros(1, 4, dtype=torch.int32)
    places = torch.zeros(2, dtype=torch.int64)

    def make(decodes: torch.Tensor, chunks: torch.Tensor) -> Tiles:
        return Tiles(
            tables=torch.zeros(2, 4, dtype=torch.int64),
            slots=places,
            positions=places,
            decodes=decodes,
            chunks=chunks,
            num_queries=num_queries,
        )

    return (
        make(one_tile, one_tile),
        make(one_tile.repeat(2 * NUM_CORES, 1), one_tile[:0]),
    )


class _NoDevice:
    """The facts that Triton needs of a device to compile for it."""

    def __init__(self, capability: int):
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def _compile_only(kernel: JITFunction[Any], grid: Any) -> Any:
    def launch(*args: object, **constants: object) -> None:
        compiled = kernel.run(*args, grid=grid, warmup=True, **constants)
        found = {
            "name": kernel.__name__,
            "shared": compiled.metadata.shared,
            "hash": compiled.hash,
            "spilled": _count_spilled(compiled.asm["cubin"]),
            "follows": compiled.metadata.launch_pdl,
            **_read_order(compiled.asm["ptx"]),
        }
        print(json.dumps(found), flush=True)

    return launch


def _read_order(code: str) -> dict[str, bool]:
    """Tell what a kernel does before it waits, in the order of its code."""
    before, wait, _ = code.partition("griddepcontrol.wait")
    return {
        "waits": bool(wait),
        "reads_before": re.search(r"\bld\.global|\bcp\.async", before) is not None,
        "writes_before": re.search(r"\b(st|red|atom)\S*\.global|\bret;", before)
        is not None,
    }


def _count_spilled(binary: bytes) -> int:
    with TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(binary)
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", path]
        text = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"STACK:(\d+)", text.stdout)
    assert found is not None, text.stdout
    return int(found[1])
