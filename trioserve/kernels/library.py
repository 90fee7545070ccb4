"""The library of kernels for this machine.

One library is built for each instruction set, from the same sources. The best that this
processor has is loaded when the process starts to load a model.
"""

from __future__ import annotations

from collections.abc import Callable
import ctypes
from ctypes import POINTER, c_int32, c_int64, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
import logging
import os
from pathlib import Path
from typing import Any

from .structs import (
    SPECS,
    AttentionSpec,
    DecoderSpec,
    EncoderSpec,
    ExchangeSpec,
    LogitsSpec,
    MatrixSpec,
    SourceSpec,
    StateSpec,
    StepSpec,
    TextsSpec,
)

logger = logging.getLogger(__name__)

_CPU_INFO = Path("/proc/cpuinfo")

# The number of the call on x86-64, and its arguments ARCH_REQ_XCOMP_PERM and XTILEDATA.
_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18

_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "f16c"}

_BF16 = {*_AVX512, "avx512_bf16", "avx512_vnni"}

# Name of a library -> the flags of /proc/cpuinfo that it needs, best first.
_INSTRUCTION_SETS = {
    "amx": {*_BF16, "amx_tile", "amx_bf16", "amx_int8"},
    "avx512_bf16": _BF16,
    "avx512": _AVX512,
    "avx2": {"avx2", "fma", "f16c"},
}


class NoKernels(Exception):
    """Raised when no library runs here; its message says why."""


class Library:
    """The functions of one library.

    Args:
      name: the instruction set.

    Raises:
      NoKernels: it was built from other sources than this file's.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._library = ctypes.CDLL(str(path))
        try:
            if self._list_sizes() != [ctypes.sizeof(spec) for spec in SPECS]:
                raise AttributeError("structures have other sizes")
            self._declare_all()
        except AttributeError as error:
            # A checkout was updated, and not installed again.
            raise NoKernels(
                f"{path.name} was built from other sources; install trioserve again"
            ) from error

    def _declare_all(self) -> None:
        declare = self._declare
        self.open_pool = declare("open_pool", c_void_p, c_int32)
        self.close_pool = declare("close_pool", None, c_void_p)
        matrix = POINTER(MatrixSpec)
        self.count_packed = declare("count_packed", c_int64, matrix)
        self.pack = declare(
            "pack", None, c_void_p, matrix, POINTER(SourceSpec), c_int32, c_void_p
        )
        self.restore = declare(
            *("restore", None, c_void_p, POINTER(SourceSpec), c_int32, c_int32),
            c_void_p,
        )
        self.unpack = declare("unpack", None, matrix, c_int32, c_int32, c_void_p)
        self.count_outputs = declare("count_outputs", c_int32)
        self.count_block = declare(
            "count_block", c_int64, c_int32, POINTER(AttentionSpec), c_int32
        )
        self.count_state = declare("count_state", c_int64, POINTER(StateSpec))
        self.open_decoder = declare(
            "open_decoder", c_void_p, c_int32, POINTER(DecoderSpec)
        )
        self.close_decoder = declare("close_decoder", None, c_void_p)
        self.run_decoder = declare(
            "run_decoder", None, c_void_p, c_void_p, POINTER(StepSpec)
        )
        self.open_encoder = declare(
            "open_encoder", c_void_p, c_int32, POINTER(EncoderSpec)
        )
        self.close_encoder = declare("close_encoder", None, c_void_p)
        self.run_encoder = declare(
            "run_encoder", None, c_void_p, c_void_p, POINTER(TextsSpec)
        )
        exchange = POINTER(ExchangeSpec)
        self.sum_shared = declare("sum_shared", c_int32, exchange, c_void_p, c_int64)
        self.gather_shared = declare(
            "gather_shared", c_int32, exchange, c_void_p, c_int64, c_void_p
        )
        self.use_tiles = declare("use_tiles", c_int32)
        logits = POINTER(LogitsSpec)
        self.find_best = declare("find_best", None, c_void_p, logits, c_void_p)
        self.find_top = declare(
            "find_top", None, c_void_p, logits, c_int32, c_void_p, c_void_p
        )
        self.race = declare(
            "race", None, c_void_p, logits, c_void_p, c_void_p, c_void_p
        )
        self.sum_weights = declare(
            "sum_weights", None, c_void_p, logits, c_int32, c_void_p, c_void_p
        )

    def _list_sizes(self) -> list[int]:
        sizes = (c_int32 * len(SPECS))()
        self._library.trioserve_list_sizes(sizes)
        return list(sizes)

    def _declare(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        function: Any = getattr(self._library, f"trioserve_{name}")
        function.restype, function.argtypes = result, arguments
        called: Callable[..., Any] = function
        return called


@cache
def open_library() -> Library:
    """Load the best library that this processor can run.

    Raises:
      NoKernels: none was built, the processor lacks the instructions, or the library
        was built from other sources.
    """
    usable = find_instruction_sets()
    if not usable:
        raise NoKernels("the processor has no AVX2 with FMA and F16C")
    for name in usable:
        # Only some functions differ, so there is no library of its own for tiles.
        path = _find("avx512_bf16" if name == "amx" else name)
        if path is None or (name == "amx" and not ask_for_tiles()):
            continue
        library = Library(name, path)
        if name != "amx" or library.use_tiles():
            return library
    raise NoKernels("trioserve was installed without a C++ compiler")


def find_instruction_sets() -> list[str]:
    """Return the names of the instruction sets of this processor, best first."""
    flags = _read_flags()
    return [name for name, needed in _INSTRUCTION_SETS.items() if needed <= flags]


def ask_for_tiles() -> bool:
    """Ask the system for the tiles of AMX, which it gives to processes that ask.

    Source: Linux, Documentation/arch/x86/xstate.rst. A container may forbid the call, and
    a thread with a small signal stack is a reason to refuse.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA) == 0:
        return True
    reason = os.strerror(ctypes.get_errno())
    logger.warning(
        "products use AVX-512, because the system gives no tiles: %s", reason
    )
    return False


def _find(name: str) -> Path | None:
    folder = Path(__file__).parent
    paths = (folder / f"_{name}{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in paths if path.exists()), None)


def _read_flags() -> set[str]:
    """Return the instruction sets that the processor has and the kernel allows."""
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:
        return set()
    flags = (line for line in lines if line.startswith("flags"))
    return set(next(flags, "").partition(":")[2].split())
