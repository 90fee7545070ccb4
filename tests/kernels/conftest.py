"""The kernels, compiled with a door to each of them.

KERNEL_SANITIZERS names sanitizers of the compiler, such as address,undefined. Python must
then be started with the library of the first one in LD_PRELOAD; .ci/run shows how.
"""

from __future__ import annotations

from collections.abc import Sequence
import ctypes
import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from trioserve.kernels.library import ask_for_tiles, find_instruction_sets

from .building import NATIVE, build

_FOLDER = Path(__file__).parent

FLAGS: dict[str, list[str]] = json.loads((NATIVE / "flags.json").read_bytes())
ALL = FLAGS.pop("all")
# The instructions of tiles, so that a machine without them tests what is done with them.
_STAND_IN = _FOLDER / "tiles_stand_in.h"
_TILES = ["amx", "tiles"]
# What the doors call, without the decoder, which takes the compiler long.
_COMPILED = [
    NATIVE / f"{name}.cpp"
    for name in ("adapters", "api_logits", "attention", "encoder", "matrix", "pool")
]


class Products(NamedTuple):
    """The library of doors. Its products of four rows and more use tiles, or not."""

    kernels: ctypes.CDLL
    by_tiles: bool


@pytest.fixture(scope="session", params=FLAGS)
def kernels(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """The library of doors, for each instruction set of this processor."""
    return _open_doors(request.param)


@pytest.fixture(scope="session", params=[*FLAGS, *_TILES])
def products(request: pytest.FixtureRequest) -> Products:
    """The library of doors, for each way to multiply."""
    kind = request.param
    by_tiles = kind in _TILES
    return Products(_open_tiles(kind) if by_tiles else _open_doors(kind), by_tiles)


@pytest.fixture(scope="session", params=_TILES)
def tiles(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """The library of doors, which multiply by tiles."""
    return _open_tiles(request.param)


def _open_tiles(kind: str) -> ctypes.CDLL:
    usable = find_instruction_sets()
    if kind == "amx" and not (kind in usable and ask_for_tiles()):
        pytest.skip("the processor has no amx")
    # The switch is one of the library, so even the real instructions need a library of their own.
    extra = ["-include", str(_STAND_IN)] if kind == "tiles" else ["-DUSES_TILES"]
    # Only the first of these has tiles, but the stand-in works with any set.
    best = "avx512_bf16" if "avx512_bf16" in usable else "avx2"
    doors = _open_doors(best, extra)
    doors.test_use_tiles(True)
    return doors


def _open_doors(instructions: str, extra: Sequence[str] = ()) -> ctypes.CDLL:
    if instructions not in find_instruction_sets():
        pytest.skip(f"the processor has no {instructions}")
    sanitizers = os.environ.get("KERNEL_SANITIZERS")
    # The sizes are small, so that to optimise takes longer than it saves. Sanitizers see
    # optimised code, and tests/model/ runs the best library of this processor.
    checks = ["-O1", f"-fsanitize={sanitizers}", "-g"] if sanitizers else ["-O0"]
    sources = [*sorted(_FOLDER.glob("door*.cpp")), *_COMPILED]
    flags = [*ALL, "-fPIC", "-shared", *FLAGS[instructions], *checks, *extra]
    return ctypes.CDLL(str(build(flags, sources)))
