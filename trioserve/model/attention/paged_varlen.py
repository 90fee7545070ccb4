"""The paged backend of PyTorch's flash attention for sequences of several lengths.

It reads keys and values where they are in the cache. PyTorch has block tables since 2.13, on
GPUs alone, and its FlashAttention 2 wants blocks of 256 tokens (--block-size 256).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import inspect
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor, nn

from ...types.plan import StepRow
from ..device.tensors import send_ids
from ..step.layout import StepInputs
from ..step.slots import SlotTables
from .backend import PagedModel
from .bridge import AttentionCall
from .kv_cache import LayerCache, allocate
from .probe import LayerSpec

# flash_api.cpp of FlashAttention 2: "Paged KV cache block size must be divisible by 256".
_BLOCK_MULTIPLE = 256

# The widest head of FlashAttention 2.
_MAX_DIM = 256

# torch.nn.attention.varlen.varlen_attn.
Attend = Callable[..., Tensor]


class VarlenAttention:
    """The PagedBackend of PyTorch's flash attention.

    Args:
      model: its layers, and the size of its cache.
      tables: the blocks of each slot.
      attend: in place of PyTorch's function, for tests without a GPU.
    """

    def __init__(
        self, model: PagedModel, tables: SlotTables, attend: Attend | None = None
    ) -> None:
        self._tables = tables
        self._attend = attend or _load_function()
        self.caches = allocate(model)
        self._layers = tuple(zip(model.layers, self.caches, model.list_windowed()))

    @staticmethod
    def find_obstacle(model: PagedModel) -> str | None:
        """Return why it cannot run these layers here; None if it can."""
        if model.device.type != "cuda":
            return "it needs a GPU"
        if "block_table" not in inspect.signature(_load_function()).parameters:
            return f"PyTorch {torch.__version__} has no block tables; 2.13 has"
        if model.block_size % _BLOCK_MULTIPLE:
            return f"it needs blocks of {_BLOCK_MULTIPLE} tokens, by --block-size"
        if model.dtype not in (torch.float16, torch.bfloat16):
            return "it needs float16 or bfloat16, by --dtype"
        if model.kv_dtype == torch.int8:
            return "it does not read a KV cache of eight bits"
        for layer in model.layers:
            if layer.needs_scores:
                return "the model changes its scores before the softmax"
            if layer.chunk is not None:
                return "the model's layers see chunks of the text"
            if layer.values_in_keys:
                return "the model keeps latents"
            if layer.joins_images:
                return "the tokens of an image see each other"
            if layer.key_dim != layer.value_dim or layer.key_dim > _MAX_DIM:
                return "the heads of the model do not fit"
        return None

    def order(self, rows: Sequence[StepRow]) -> list[int]:
        """Keep the order of the plan."""
        return list(range(len(rows)))

    def begin(self, step: StepInputs) -> _VarlenStep:
        rows, device = step.rows, step.slot_ids.device
        size = self._tables.block_size
        begins = [0, *accumulate(row.num_tokens for row in rows)]
        numbers = send_ids(
            [*begins, *(row.end for row in rows), *(row.slot for row in rows)], device
        )
        begins_of, ends, slots = numbers.split([len(begins), len(rows), len(rows)])
        longest = max(row.end for row in rows)

        def lay_out(is_windowed: bool) -> _Layout:
            table = self._tables.get_table(is_windowed)
            return _Layout(
                begins=begins_of.to(torch.int32),
                ends=ends.to(torch.int32),
                tables=table[slots, : -(-longest // size)].to(torch.int32),
                max_queries=max(row.num_tokens for row in rows),
                max_keys=longest,
                cache_slots=self._tables.find_cache_slots(
                    step.slot_ids, step.position_ids[0], is_windowed
                ),
            )

        groups = {is_windowed for _, _, is_windowed in self._layers}
        layouts = {group: lay_out(group) for group in groups}
        return _VarlenStep(self._layers, layouts, self._attend)


def _load_function() -> Attend:
    from torch.nn.attention.varlen import varlen_attn

    # Its type has a second result, which nobody here asks for.
    return cast(Attend, varlen_attn)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """The tensors shared by layers of a step with the same blocks, for PyTorch's function.

    Attributes:
      begins: (num_rows + 1,) int32, cu_seq_q
      ends: (num_rows,) int32, seqused_k
      tables: (num_rows, max_blocks) int32, block_table
      cache_slots: (num_tokens,) int64, block * block_size + offset of each new token
    """

    begins: Tensor
    ends: Tensor
    tables: Tensor
    max_queries: int
    max_keys: int
    cache_slots: Tensor


class _VarlenStep:
    """Attention of one step: each call reads and writes the next layer's cache."""

    def __init__(
        self,
        layers: tuple[tuple[LayerSpec, LayerCache, bool], ...],
        layouts: dict[bool, _Layout],
        attend: Attend,
    ) -> None:
        # Invariant: a model calls attention in the order that the probe saw.
        self._layers = iter(layers)
        self._layouts = layouts
        self._attend = attend

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: AttentionCall,
    ) -> Tensor:
        layer, cache, is_windowed = next(self._layers)
        layout = self._layouts[is_windowed]
        if layer.shares is None:
            cache.write(layout.cache_slots, key, value)
        return self._attend(
            query,
            cache.blocks[..., : cache.key_dim],
            cache.blocks[..., cache.key_dim :],
            layout.begins,
            None,
            layout.max_queries,
            layout.max_keys,
            scale=call.scaling,
            # Keys to the left of a query's own, and to the right.
            window_size=(-1 if layer.window is None else layer.window - 1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
            seqused_k=layout.ends,
            block_table=layout.tables,
        )
