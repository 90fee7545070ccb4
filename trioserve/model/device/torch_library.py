"""Loads torch's largest library beside other work, without torch."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
import os
from pathlib import Path


def load_torch_library() -> None:
    """Load the library with torch's operators for CPUs; blocks for a sixth of a second.

    Most of that is the linker's work. The import of torch holds the GIL meanwhile, and this
    function does not. So it takes nothing from a thread that imports other modules. An import
    of torch finds the library then. Errors are left to it.

    Nothing happens if torch is built for GPUs: it chooses among their libraries first.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return
    folder = Path(spec.origin).parent / "lib"
    if (folder / "libtorch_cuda.so").exists() or (folder / "libtorch_hip.so").exists():
        return
    # As torch does it: this library brings those that all others share.
    _load(folder / "libtorch_global_deps.so", ctypes.RTLD_GLOBAL)
    _load(folder / "libtorch_cpu.so", ctypes.RTLD_LOCAL)


def _load(path: Path, mode: int) -> None:
    # ctypes.CDLL(path) would hold the GIL.
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.restype = ctypes.c_void_p
    dlopen(os.fsencode(path), mode | os.RTLD_NOW)
