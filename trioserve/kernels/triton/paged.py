"""Attention over the paged cache of one layer, by its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from .attend import attend, merge, write_cache
from .tiles import Tiles, count_splits
from .widths import (
    AttendSize,
    choose_size,
    count_chunk_rows,
    count_long_rows,
    count_merge_warps,
    count_most_splits,
    round_side,
    round_up,
)


class AttentionSpec(Protocol):
    """The sizes and rules of one layer, as attention/probe.py finds them."""

    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def key_dim(self) -> int: ...
    @property
    def value_dim(self) -> int: ...
    @property
    def window(self) -> int | None: ...
    @property
    def scaling(self) -> float: ...
    @property
    def softcap(self) -> float | None: ...
    @property
    def sinks(self) -> Tensor | None: ...
    @property
    def shares(self) -> int | None: ...
    @property
    def joins_images(self) -> bool: ...


@dataclass(frozen=True)
class PagedLayer:
    """The attention of one layer.

    Args:
      cache: (num_blocks, block_size, num_kv_heads, key_dim + value_dim); int8, or of the
        queries' type
      num_cores: multiprocessors of the device.
      is_windowed: it has the blocks of layers with windows.
      scales: (2, num_blocks, num_kv_heads, block_size) float32, the factors of int8 keys and
        values; None for others
      dtype: of queries; None is the cache's.
      measured: rows of a product -> the fastest size; others have `choose_size`. The most rows
        are the fastest where chunks have tiles for the whole device.
    """

    spec: AttentionSpec
    cache: Tensor
    num_cores: int
    is_windowed: bool = False
    scales: Tensor | None = None
    dtype: torch.dtype | None = None
    measured: Mapping[int, AttendSize] = field(default_factory=dict)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The constants that its kernels share."""
        spec = self.spec
        return {
            "NUM_KV_HEADS": spec.num_kv_heads,
            "KEY_DIM": spec.key_dim,
            "VALUE_DIM": spec.value_dim,
            "KEY_WIDTH": round_side(spec.key_dim),
            "VALUE_WIDTH": round_side(spec.value_dim),
            "BLOCK_SIZE": self.cache.shape[1],
            "HAS_SCALES": self.scales is not None,
        }

    @property
    def group(self) -> int:
        return self.spec.num_heads // self.spec.num_kv_heads

    @property
    def chunk_queries(self) -> int:
        """Most tokens of a tile of a chunk."""
        return self.count_queries(count_chunk_rows(self.width, self.itemsize))

    @property
    def long_queries(self) -> int:
        """Most tokens of a tile where chunks have tiles for the whole device."""
        most = max(self.measured, default=0)
        return max(self.chunk_queries, self.count_queries(most))

    def count_queries(self, rows: int) -> int:
        """Return the most tokens of a tile whose product has so many rows."""
        return max(1, rows // self.group)

    @property
    def decode_rows(self) -> int:
        """Rows of the product of a decode's tile."""
        return round_side(self.group)

    @property
    def chunk_rows(self) -> int:
        """Rows of the product of a chunk's tile."""
        return round_side(self.chunk_queries * self.group)

    @property
    def long_rows(self) -> int:
        """Rows of the product of a tile where chunks have tiles for the whole device."""
        rows = count_long_rows(self.width, self.itemsize)
        return round_side(self.count_queries(rows) * self.group)

    @property
    def num_parts(self) -> int:
        """Programs of one tile and one split."""
        return self.spec.num_kv_heads

    @cached_property
    def both_scales(self) -> tuple[Tensor | None, Tensor | None]:
        """The scales of keys and of values."""
        return (None, None) if self.scales is None else (self.scales[0], self.scales[1])

    @property
    def itemsize(self) -> int:
        """Bytes of the numbers that are multiplied."""
        return (self.dtype or self.cache.dtype).itemsize

    @property
    def width(self) -> int:
        """Numbers of a head, rounded up to a power of two."""
        return max(self.sizes["KEY_WIDTH"], self.sizes["VALUE_WIDTH"])

    def find_size(self, rows: int) -> AttendSize:
        """Return the size of a program whose product has so many rows."""
        return self.measured.get(rows) or choose_size(
            *(rows, self.width, self.itemsize), has_scales=self.scales is not None
        )

    def write(self, key: Tensor, value: Tensor, tiles: Tiles) -> None:
        """Store the keys and values of a step, (num_tokens, num_kv_heads, dim) each."""
        key, value = _close_rows(key), _close_rows(value)
        table = tiles.get_table(self.is_windowed)
        write_cache[key.shape[:1]](
            key,
            value,
            self.cache,
            *self.both_scales,
            table,
            tiles.slots,
            tiles.positions,
            *key.stride()[:2],
            *value.stride()[:2],
            table.stride(0),
            **self.sizes,
            HEADS_WIDTH=round_up(self.spec.num_kv_heads),
        )

    def attend(self, query: Tensor, tiles: Tiles) -> Tensor:
        """Attend from a step's queries; its keys and values are in the cache.

        Args:
          query: (num_tokens, num_heads, key_dim)

        Returns:
          (num_tokens, num_heads, value_dim)
        """
        query = _close_rows(query)
        output = query.new_empty((*query.shape[:2], self.spec.value_dim))
        if len(tiles.decodes):
            self._attend_decodes(query, output, tiles)
        num_queries, chunks = tiles.get_chunks(self.chunk_queries)
        if len(chunks):
            self._launch(query, output, None, None, tiles, chunks, 1, num_queries)
        return output

    def make_grid(
        self, num_tiles: int, splits: int, *, is_chunk: bool
    ) -> tuple[int, int, int]:
        """Return the numbers of programs, the fastest first."""
        if is_chunk:
            return self.num_parts, num_tiles, splits
        return num_tiles, self.num_parts, splits

    def _attend_decodes(self, query: Tensor, output: Tensor, tiles: Tiles) -> None:
        spec, decodes = self.spec, tiles.decodes
        splits = count_splits(
            *(len(decodes) * self.num_parts, self.num_cores),
            most=count_most_splits(self.width),
        )
        if splits == 1:
            self._launch(query, output, None, None, tiles, decodes, 1, 1)
            return
        shape = len(decodes), spec.num_heads, splits
        parts = query.new_empty((*shape, spec.value_dim), dtype=torch.float32)
        sums, peaks = query.new_empty((2, *shape), dtype=torch.float32)
        self._launch(query, parts, sums, peaks, tiles, decodes, splits, 1)
        merge[shape[:2]](
            parts,
            sums,
            peaks,
            output,
            decodes,
            spec.sinks,
            spec.num_heads,
            VALUE_DIM=spec.value_dim,
            VALUE_WIDTH=round_side(spec.value_dim),
            BLOCK_SIZE=self.cache.shape[1],
            WINDOW=spec.window or 0,
            HAS_SINKS=spec.sinks is not None,
            NUM_SPLITS=splits,
            TILE_KEYS=self.find_size(self.decode_rows).keys,
            num_warps=count_merge_warps(splits, spec.value_dim),
        )

    def _launch(
        self,
        query: Tensor,
        output: Tensor,
        sums: Tensor | None,
        peaks: Tensor | None,
        tiles: Tiles,
        chosen: Tensor,
        splits: int,
        num_queries: int,
    ) -> None:
        spec, table = self.spec, tiles.get_table(self.is_windowed)
        is_chunk = chosen is not tiles.decodes
        # A decode sees no key behind its own.
        has_ends = spec.joins_images and is_chunk
        key_ends = tiles.key_ends if has_ends else None
        rows = round_side(num_queries * self.group)
        size = self.find_size(rows)
        attend[self.make_grid(len(chosen), splits, is_chunk=is_chunk)](
            query,
            output,
            sums,
            peaks,
            self.cache,
            *self.both_scales,
            table,
            chosen,
            spec.sinks,
            key_ends,
            spec.scaling,
            spec.softcap or 1.0,
            *query.stride()[:2],
            table.stride(0),
            **self.sizes,
            GROUP=self.group,
            WINDOW=spec.window or 0,
            HAS_SOFTCAP=spec.softcap is not None,
            HAS_SINKS=spec.sinks is not None,
            HAS_KEY_ENDS=key_ends is not None,
            NUM_SPLITS=splits,
            TILE_ROWS=rows,
            TILE_KEYS=size.keys,
            IS_CHUNK=is_chunk,
            num_warps=size.warps,
            num_stages=size.stages,
        )


def _close_rows(tensor: Tensor) -> Tensor:
    """The kernels take any strides but the last."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def count_cores(device: torch.device) -> int:
    """Return the multiprocessors of a device."""
    if device.type != "cuda":
        # The interpreter's. It has the kernels divide some keys.
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count
