"""The scans of whole vocabularies for sampling, on the native kernels."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ....kernels.library import Library
from ....kernels.structs import LogitsSpec


class NativeScans:
    """The Scans (model/step/scans.py) of float32 logits; of equal ones the first is first.

    Args:
      pool: of the library. It runs one job at a time, so call this in the thread that
        runs the layers.
      held: the owner of the pool.
    """

    def __init__(self, library: Library, pool: int, held: object) -> None:
        self._library = library
        self._pool = pool
        self._held = held

    def find_best(self, logits: Tensor) -> Tensor:
        token_ids = torch.empty(len(logits), dtype=torch.int64)
        logits = _lay_out(logits)
        spec = _describe(logits)
        self._library.find_best(self._pool, ctypes.byref(spec), token_ids.data_ptr())
        return token_ids

    def find_top(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        values = torch.empty(len(logits), count)
        token_ids = torch.empty(len(logits), count, dtype=torch.int64)
        logits = _lay_out(logits)
        self._library.find_top(
            *(self._pool, ctypes.byref(_describe(logits)), count),
            *(values.data_ptr(), token_ids.data_ptr()),
        )
        return values, token_ids

    def sum_weights(self, logits: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
        num_groups = -(-logits.shape[1] // group_size)
        largest = torch.empty(len(logits), 1)
        sums = torch.empty(len(logits), num_groups, dtype=torch.float64)
        logits = _lay_out(logits)
        self._library.sum_weights(
            *(self._pool, ctypes.byref(_describe(logits)), group_size),
            *(largest.data_ptr(), sums.data_ptr()),
        )
        return largest, sums

    def race(
        self, logits: Tensor, keys: Tensor, token_ids: Tensor | None = None
    ) -> Tensor:
        places = torch.empty(len(logits), dtype=torch.int64)
        logits = _lay_out(logits)
        if token_ids is not None:
            token_ids = token_ids.contiguous()
        self._library.race(
            *(self._pool, ctypes.byref(_describe(logits)), keys.data_ptr()),
            None if token_ids is None else token_ids.data_ptr(),
            places.data_ptr(),
        )
        return places


def _lay_out(logits: Tensor) -> Tensor:
    """Return logits whose rows have no gaps; there may be some between the rows."""
    assert logits.dtype == torch.float32, "the kernels compute float32 logits"
    return logits if logits.stride(1) == 1 else logits.contiguous()


def _describe(logits: Tensor) -> LogitsSpec:
    return LogitsSpec(
        numbers=logits.data_ptr(),
        stride=logits.stride(0),
        num_rows=len(logits),
        vocab_size=logits.shape[1],
    )
