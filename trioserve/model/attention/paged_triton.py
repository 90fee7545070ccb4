"""The paged backend of Triton kernels, for GPUs.

It reads keys and values where they are in the cache, so a step copies none of them. Decodes
are put first among the flat tokens: they get a launch of their own, with splits of the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
import importlib.util
import os

import torch
from torch import Tensor, nn

from ...types.plan import StepRow
from ..slots import SlotTables
from ..tensors import send_ids
from .backend import PagedModel
from .bridge import AttentionCall
from .kv_cache import LayerCache, allocate
from .layout import StepInputs
from .probe import LayerSpec
from .tiles import TILE_NUMBERS, count_splits, cut_tiles

# Wider heads do not fit into a multiprocessor's shared memory beside their keys.
_MAX_DIM = 256

# The smallest side of a product on tensor cores.
_LEAST_SIDE = 16

# Tokens of a chunk and keys of a product: the usual choice for heads of 64 to 128 numbers.
# Not measured on a GPU yet; bench/RESULTS.md will say.
_CHUNK_ROWS = 64
_TILE_KEYS = 64


class TritonAttention:
    """The PagedBackend of Triton kernels.

    Args:
      model: its layers, and the size of its cache.
      tables: the blocks of each slot.
    """

    def __init__(self, model: PagedModel, tables: SlotTables) -> None:
        self._layers = model.layers
        self._tables = tables
        self._shapes = tuple(
            _Shape(layer=layer, block_size=model.block_size) for layer in model.layers
        )
        self._caches = allocate(
            model.layers,
            num_blocks=model.num_blocks,
            block_size=model.block_size,
            dtype=model.dtype,
            device=model.device,
        )
        self._num_cores = _count_cores(model.device)
        self._num_queries = min(shape.chunk_queries for shape in self._shapes)

    @staticmethod
    def find_obstacle(model: PagedModel) -> str | None:
        """Return why it cannot run these layers here; None if it can."""
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        if model.device.type != "cuda" and not _is_interpreted():
            return "it needs a GPU"
        if model.block_size & (model.block_size - 1):
            return "it needs a --block-size that is a power of two"
        if model.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return "it needs float32, float16 or bfloat16, by --dtype"
        dims = {dim for each in model.layers for dim in (each.key_dim, each.value_dim)}
        if max(dims) > _MAX_DIM:
            return f"the heads of the model have more than {_MAX_DIM} numbers"
        return None

    def order(self, rows: Sequence[StepRow]) -> list[int]:
        """Put single tokens first."""
        return sorted(range(len(rows)), key=lambda i: rows[i].num_tokens > 1)

    def begin(self, step: StepInputs) -> _TritonStep:
        decodes, chunks = cut_tiles(step.rows, self._num_queries)
        device = step.slot_ids.device
        numbers = [number for tile in (*decodes, *chunks) for number in tile]
        tiles = send_ids(numbers, device).to(torch.int32).view(-1, TILE_NUMBERS)
        launch = _Launch(
            tables=self._tables.block_ids,
            slots=step.slot_ids,
            positions=step.position_ids[0],
            decodes=tiles[: len(decodes)],
            chunks=tiles[len(decodes) :],
            num_cores=self._num_cores,
        )
        return _TritonStep(self._shapes, self._caches, launch)


def _is_interpreted() -> bool:
    """Whether Triton's interpreter will run the kernels, on any device."""
    # Read as triton reads it, without the time to import it.
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on")


def _count_cores(device: torch.device) -> int:
    if device.type != "cuda":
        # The interpreter's. It has the kernels divide some keys.
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


@dataclass(frozen=True)
class _Shape:
    """The sizes of one layer, as the kernels take them."""

    layer: LayerSpec
    block_size: int

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The constants that both kernels share."""
        layer = self.layer
        return {
            "NUM_KV_HEADS": layer.num_kv_heads,
            "KEY_DIM": layer.key_dim,
            "VALUE_DIM": layer.value_dim,
            "KEY_WIDTH": _round_up(layer.key_dim),
            "VALUE_WIDTH": _round_up(layer.value_dim),
            "BLOCK_SIZE": self.block_size,
        }

    @property
    def group(self) -> int:
        return self.layer.num_heads // self.layer.num_kv_heads

    @property
    def chunk_queries(self) -> int:
        """Tokens of a chunk that share a tile."""
        return max(1, _CHUNK_ROWS // self.group)


def _round_up(number: int) -> int:
    """Return the next power of two that a product can have."""
    return max(_LEAST_SIDE, 1 << (number - 1).bit_length())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    """What all layers of a step share.

    Attributes:
      tables: (max_num_seqs, max_blocks) int64
      slots, positions: (num_tokens,) int64
      decodes, chunks: (num_tiles, 4) int32
      num_cores: multiprocessors of the device.
    """

    tables: Tensor
    slots: Tensor
    positions: Tensor
    decodes: Tensor
    chunks: Tensor
    num_cores: int


class _TritonStep:
    """Attention of one step: each call reads and writes the next layer's cache."""

    def __init__(
        self,
        shapes: tuple[_Shape, ...],
        caches: tuple[LayerCache, ...],
        launch: _Launch,
    ) -> None:
        self._layers = iter(zip(shapes, caches, strict=True))
        self._launch = launch

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: AttentionCall,
    ) -> Tensor:
        # Invariant: a model calls attention in the order that the probe saw.
        shape, cache = next(self._layers)
        # The kernels take any strides but the last.
        query, key, value = (
            each if each.stride(-1) == 1 else each.contiguous()
            for each in (query, key, value)
        )
        # All keys and values are written before any are read, because rows of a step may
        # share a block.
        self._write(shape, cache, key, value)
        output = query.new_empty((*query.shape[:2], shape.layer.value_dim))
        for tiles, is_decode in (
            (self._launch.decodes, True),
            (self._launch.chunks, False),
        ):
            if len(tiles):
                self._attend(shape, cache, query, output, tiles, call, is_decode)
        return output

    def _write(
        self, shape: _Shape, cache: LayerCache, key: Tensor, value: Tensor
    ) -> None:
        from ..triton.attend import write_cache

        write_cache[key.shape[:1]](
            key,
            value,
            cache.blocks,
            self._launch.tables,
            self._launch.slots,
            self._launch.positions,
            *key.stride()[:2],
            *value.stride()[:2],
            self._launch.tables.stride(0),
            **shape.sizes,
            HEADS_WIDTH=1 << (shape.layer.num_kv_heads - 1).bit_length(),
        )

    def _attend(
        self,
        shape: _Shape,
        cache: LayerCache,
        query: Tensor,
        output: Tensor,
        tiles: Tensor,
        call: AttentionCall,
        is_decode: bool,
    ) -> None:
        from ..triton.attend import attend, merge

        launch, num_heads = self._launch, query.shape[1]
        num_kv_heads = shape.layer.num_kv_heads
        splits = 1
        if is_decode:
            splits = count_splits(len(tiles) * num_kv_heads, launch.num_cores)
        target, sums, peaks = output, None, None
        if splits > 1:
            parts = len(tiles), num_heads, splits
            target = query.new_empty((*parts, output.shape[2]), dtype=torch.float32)
            sums, peaks = query.new_empty((2, *parts), dtype=torch.float32)
        num_queries = 1 if is_decode else shape.chunk_queries
        attend[len(tiles), num_kv_heads, splits](
            query,
            target,
            sums,
            peaks,
            cache.blocks,
            launch.tables,
            tiles,
            call.sinks,
            call.scaling,
            call.softcap or 1.0,
            *query.stride()[:2],
            launch.tables.stride(0),
            **shape.sizes,
            GROUP=shape.group,
            WINDOW=call.window or 0,
            HAS_SOFTCAP=call.softcap is not None,
            HAS_SINKS=call.sinks is not None,
            NUM_SPLITS=splits,
            TILE_ROWS=_round_up(num_queries * shape.group),
            TILE_KEYS=_TILE_KEYS,
        )
        if splits > 1:
            merge[len(tiles), num_heads](
                target,
                sums,
                peaks,
                output,
                tiles,
                call.sinks,
                num_heads,
                VALUE_DIM=shape.layer.value_dim,
                VALUE_WIDTH=_round_up(shape.layer.value_dim),
                HAS_SINKS=call.sinks is not None,
                NUM_SPLITS=splits,
            )
