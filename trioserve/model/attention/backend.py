"""The protocol of attention backends: one file each, which owns its layout and its limits.

    order   the order of rows among the flat tokens
    begin   the data that all layers of a step read -> StepAttention, which they call

Decoders keep keys and values in a paged cache, which their backend allocates. Encoders
read whole inputs and keep nothing. choose.py lists the backends of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from ...types.plan import StepRow
from ...types.pooling import PoolingInput
from ..step.layout import StepInputs
from .bridge import StepAttention
from .probe import LayerSpec
from .windows import list_windowed

RowT = TypeVar("RowT", contravariant=True)
StepT = TypeVar("StepT", contravariant=True)


class AttentionBackend(Protocol[RowT, StepT]):
    """A way to compute attention, for one model on one device."""

    def order(self, rows: Sequence[RowT]) -> list[int]:
        """Return the order of rows among the flat tokens that is fastest to read.

        Returns:
          places in `rows`, each of them once
        """

    def begin(self, step: StepT) -> StepAttention:
        """Lay out the data that the layers read in a step, with its rows in `order`."""


PagedBackend = AttentionBackend[StepRow, StepInputs]
EncoderBackend = AttentionBackend[PoolingInput, Sequence[PoolingInput]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedModel:
    """The facts about a model that a paged backend needs.

    Args:
      layers: its calls of attention, in order.
      num_blocks: blocks of the KV cache, numbered from 0.
      block_size: tokens in one block.
      kv_dtype: type of the numbers in the KV cache (kv_cache.py); None is `dtype`.
      num_window_blocks: blocks of the layers with windows; None if they have the same blocks
        as all others.
    """

    layers: tuple[LayerSpec, ...]
    num_blocks: int
    block_size: int
    dtype: torch.dtype
    device: torch.device
    kv_dtype: torch.dtype | None = None
    num_window_blocks: int | None = None

    def list_windowed(self) -> list[bool]:
        """Return of each layer whether it has the blocks of layers with windows."""
        if self.num_window_blocks is None:
            return [False] * len(self.layers)
        return list_windowed(self.layers)
