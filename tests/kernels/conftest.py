"""The kernels, compiled with a door to each of them.

KERNEL_SANITIZERS names sanitizers of the compiler, such as address,undefined. Python must
then be started with the library of the first one in LD_PRELOAD; .ci/run shows how.
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path

import pytest

from trioserve.kernels.library import find_instruction_sets

from .building import NATIVE, build

FLAGS: dict[str, list[str]] = json.loads((NATIVE / "flags.json").read_bytes())
ALL = FLAGS.pop("all")
# What the doors call, without the decoder, which takes the compiler long.
_COMPILED = ("adapters", "api_logits", "attention", "encoder", "matrix", "pool")


@pytest.fixture(scope="session", params=FLAGS)
def kernels(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """The library of doors, for each instruction set of this processor."""
    if request.param not in find_instruction_sets():
        pytest.skip(f"the processor has no {request.param}")
    sanitizers = os.environ.get("KERNEL_SANITIZERS")
    # The sizes are small, so that to optimise takes longer than it saves. Sanitizers see
    # optimised code, and tests/model/ runs the best library of this processor.
    checks = ["-O1", f"-fsanitize={sanitizers}", "-g"] if sanitizers else ["-O0"]
    sources = [
        *sorted(Path(__file__).parent.glob("door*.cpp")),
        *(NATIVE / f"{name}.cpp" for name in _COMPILED),
    ]
    flags = [*ALL, "-fPIC", "-shared", *FLAGS[request.param], *checks]
    return ctypes.CDLL(str(build(flags, sources)))
