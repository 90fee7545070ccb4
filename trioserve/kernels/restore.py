"""Dequantises stored weights: by the native kernels on a CPU, and by torch elsewhere."""

from __future__ import annotations

from contextlib import suppress
import ctypes
from functools import cache
import os
from threading import Lock

import torch
from torch import Tensor

from .library import NoKernels, open_library
from .stored import StoredWeights
from .structs import SourceSpec

# SourceKind of native/gguf.h, by the names of formats. The native kernels read no FP8.
STORED_KINDS = {"int8": 16, "int4": 17, "mxfp4": 18}

# FormatCode of native/matrix.h.
_CODES = {torch.float32: 0, torch.bfloat16: 1}

# Of the first calls, each of which would start threads.
_lock = Lock()


def describe_stored(stored: StoredWeights) -> tuple[SourceSpec, object]:
    """Describe weights for the native kernels.

    Args:
      stored: on the CPU, in one of STORED_KINDS.

    Returns:
      the structure, and what it points to
    """
    scales = stored.scales.float()
    if stored.format == "mxfp4":
        # Their codes are numbers of E2M1, taken twice.
        scales = torch.exp2(scales - 128)
    zeros = None if stored.zeros is None else stored.zeros.float().contiguous()
    codes, scales = stored.codes, scales.contiguous()
    order = stored.order
    num_groups = scales.shape[1]
    spec = SourceSpec(
        rows=codes.data_ptr(),
        scales=scales.data_ptr(),
        zeros=None if zeros is None else zeros.data_ptr(),
        columns=None if order is None else order.data_ptr(),
        row_bytes=codes.stride(0) * codes.element_size(),
        kind=STORED_KINDS[stored.format],
        num_outputs=stored.num_outputs,
        num_groups=num_groups,
        group_size=stored.num_codes // num_groups,
    )
    return spec, (codes, scales, zeros, order)


def restore(stored: StoredWeights, dtype: torch.dtype) -> Tensor:
    """Dequantise weights; returns (num_outputs, num_inputs)."""
    is_native = stored.codes.device.type == "cpu" and dtype in _CODES
    if is_native and stored.format in STORED_KINDS:
        with suppress(NoKernels):
            with _lock:
                restorer = _open_restorer(os.getpid())
            return restorer.restore(stored, dtype)
    return stored.restore(dtype)


class _Restorer:
    """Threads that dequantise weights.

    They stay, and sleep between two calls. If they ended with each call, their end would wait for
    torch's threads, which keep the cores for some milliseconds behind each operator.
    """

    def __init__(self) -> None:
        self._library = open_library()
        self._pool = self._library.open_pool(torch.get_num_threads())
        self._lock = Lock()

    def restore(self, stored: StoredWeights, dtype: torch.dtype) -> Tensor:
        # The tensors live until this returns.
        spec, _held = describe_stored(stored)
        restored = torch.empty(stored.shape, dtype=dtype)
        with self._lock:
            self._library.restore(
                *(self._pool, ctypes.byref(spec), stored.num_inputs, _CODES[dtype]),
                restored.data_ptr(),
            )
        return restored


@cache
def _open_restorer(process: int) -> _Restorer:
    """Start the threads of a process: a fork has none of its parent's."""
    return _Restorer()
