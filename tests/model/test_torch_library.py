"""The library of torch that is loaded beside other imports."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from trioserve.model.device.torch_library import load_torch_library

def is_mapped():
    return "libtorch_cpu.so" in open("/proc/self/maps").read()

before = is_mapped()
load_torch_library()
print(before, is_mapped(), "torch" in sys.modules)
"""


def test_torchs_library_is_loaded_without_torch() -> None:
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    if (Path(spec.origin).parent / "lib" / "libtorch_cuda.so").exists():
        pytest.skip("torch is built for GPUs")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True", "False"]
