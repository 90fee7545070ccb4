"""The paged backend of Triton kernels, for GPUs.

It reads keys and values where they are in the cache, so a step copies none of them. Decodes
are put first among the flat tokens: they get a launch of their own, with splits of the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
import importlib.util
from itertools import chain
import os
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ...kernels.triton.tiles import (
    TILE_NUMBERS,
    ChunkTiles,
    Tiles,
    count_queries,
    cut_tiles,
)
from ...kernels.triton.widths import MAX_LATENT_DIM, MAX_SHARED_DIM
from ...types.plan import StepRow
from ..step.layout import StepInputs
from ..step.slots import SlotTables
from .backend import PagedModel
from .bridge import AttentionCall
from .kv_cache import allocate
from .probe import LayerSpec

if TYPE_CHECKING:
    from ...kernels.triton.paged import PagedLayer

# Gemma 4's. Wider heads do not fit into registers and shared memory beside their keys.
MAX_DIM = 512

# A cache of fewer tokens belongs to a check or a test, which need not be fast.
_FEW_TOKENS = 4096


class TritonAttention:
    """The PagedBackend of Triton kernels.

    Args:
      model: its layers, and the size of its cache.
      tables: the blocks of each slot.
    """

    def __init__(self, model: PagedModel, tables: SlotTables) -> None:
        # Only here, because a machine without a GPU may have no triton.
        from ...kernels.triton.paged import PagedLayer, count_cores
        from ...kernels.triton.paged_latents import LatentLayer

        self.caches = allocate(model)
        self._num_cores = num_cores = count_cores(model.device)
        self._tables = tables
        layers = (
            (LatentLayer if spec.values_in_keys else PagedLayer)(
                *(spec, cache.blocks, num_cores, is_windowed),
                scales=cache.scales,
                dtype=cache.dtype,
            )
            for spec, cache, is_windowed in zip(
                model.layers, self.caches, model.list_windowed()
            )
        )
        self.layers = tuple(map(_measure, layers))
        kinds: dict[int, list[PagedLayer]] = {}
        for layer in self.layers:
            kinds.setdefault(layer.chunk_queries, []).append(layer)
        # Few and many tokens of a tile, and programs of one, of each kind of layers. A stage of
        # a pipeline may have no attention.
        self._kinds = [
            (
                few,
                min(each.long_queries for each in kinds[few]),
                min(each.num_parts for each in kinds[few]),
            )
            for few in sorted(kinds)
        ] or [(1, 1, 1)]

    @staticmethod
    def find_obstacle(model: PagedModel) -> str | None:
        """Return why it cannot run these layers here; None if it can."""
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        if model.device.type != "cuda" and not _is_interpreted():
            return "it needs a GPU"
        if model.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return "it needs float32, float16 or bfloat16, by --dtype"
        misfits = map(_find_misfit, model.layers)
        return next((each for each in misfits if each is not None), None)

    def order(self, rows: Sequence[StepRow]) -> list[int]:
        """Put single tokens first."""
        return sorted(range(len(rows)), key=lambda i: rows[i].num_tokens > 1)

    def begin(self, step: StepInputs) -> _TritonStep:
        return _TritonStep(self.layers, self.cut(step))

    def cut(self, step: StepInputs) -> Tiles:
        """Cut the tokens of a step into tiles."""
        counts = [
            count_queries(step.rows, *kind, self._num_cores) for kind in self._kinds
        ]
        cuts = [cut_tiles(step.rows, count) for count in counts]
        lists = [cuts[0][0], *(chunks for _, chunks in cuts)]
        numbers = np.array([*chain.from_iterable(lists)], dtype=np.int32)
        tiles = step.numbers.add(numbers.reshape(-1, TILE_NUMBERS)).get()
        decodes, chunks, *larger = tiles.split([*map(len, lists)])
        others = map(ChunkTiles, counts[1:], larger)
        return Tiles(
            tables=self._tables.block_ids,
            window_tables=self._tables.window_ids,
            slots=step.slot_ids,
            positions=step.position_ids[0],
            decodes=decodes,
            chunks=chunks,
            num_queries=counts[0],
            larger_chunks=dict(zip((few for few, *_ in self._kinds[1:]), others)),
            key_ends=step.key_ends,
        )


def _measure(layer: PagedLayer) -> PagedLayer:
    """Return a layer with the fastest sizes, if a GPU runs it."""
    from ...kernels.triton.measure_sizes import choose_sizes, time_on_device
    from ...kernels.triton.paged_latents import LatentLayer
    from ...kernels.triton.size_table import open_size_table

    device, num_tokens = layer.cache.device, layer.cache.shape[:2].numel()
    if device.type != "cuda" or _is_interpreted() or num_tokens < _FEW_TOKENS:
        return layer
    if isinstance(layer, LatentLayer):
        return layer
    with torch.cuda.device(device):
        return choose_sizes(layer, open_size_table(), time_on_device)


def _is_interpreted() -> bool:
    """Return whether Triton's interpreter will run the kernels, on any device."""
    # Read as triton reads it, without the time to import it.
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on")


def _find_misfit(layer: LayerSpec) -> str | None:
    """Return why no kernel runs a layer; None if one does."""
    if layer.chunk is not None:
        return "the model's layers see chunks of the text"
    if not layer.values_in_keys:
        if max(layer.key_dim, layer.value_dim) > MAX_DIM:
            return f"the heads of the model have more than {MAX_DIM} numbers"
        return None
    if layer.num_kv_heads > 1 or layer.needs_scores or layer.joins_images:
        return "layers that keep latents have several heads of keys, change scores or join images"
    if layer.window is not None:
        return "layers that keep latents have windows"
    shared_dim = layer.key_dim - layer.value_dim
    if layer.value_dim > MAX_LATENT_DIM or shared_dim > MAX_SHARED_DIM:
        return (
            f"latents have more than {MAX_LATENT_DIM} numbers, or their shared keys "
            f"more than {MAX_SHARED_DIM}"
        )
    return None


class _TritonStep:
    """Attention of one step: each call reads and writes the next layer's cache."""

    def __init__(self, layers: tuple[PagedLayer, ...], tiles: Tiles) -> None:
        # Invariant: a model calls attention in the order that the probe saw.
        self._layers = iter(layers)
        self._tiles = tiles

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: AttentionCall,
    ) -> Tensor:
        layer = next(self._layers)
        # All keys and values are written before any are read, because rows of a step may
        # share a block.
        if layer.spec.shares is None:
            layer.write(key, value, self._tiles)
        return layer.attend(query, self._tiles)
