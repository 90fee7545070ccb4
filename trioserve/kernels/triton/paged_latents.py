"""Attention over the paged latents of one layer, by its kernels."""

from __future__ import annotations

from functools import cached_property

from torch import Tensor

from .attend_latents import attend_latents
from .paged import PagedLayer
from .rotate_latents import rotate_latents
from .steps import Angles
from .tiles import Tiles
from .widths import (
    AttendSize,
    choose_latent_size,
    count_latent_rows,
    round_side,
    round_up,
)


class LatentLayer(PagedLayer):
    """The attention of one layer whose values are the first numbers of its one head of keys.

    Args:
      cache: (num_blocks, block_size, 1, key_dim)
      scales: (1, num_blocks, 1, block_size) float32, the factors of int8 rows; None for others
    """

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The constants of `write_cache`, which stores keys alone."""
        return {**super().sizes, "VALUE_DIM": 0}

    @property
    def chunk_queries(self) -> int:
        """Most tokens of a tile of a chunk."""
        return max(1, count_latent_rows(self.itemsize) // self.spec.num_heads)

    @property
    def decode_rows(self) -> int:
        return round_side(self._part_heads)

    def find_size(self, rows: int) -> AttendSize:
        return choose_latent_size(
            rows, self.itemsize, has_scales=self.scales is not None
        )

    @property
    def num_parts(self) -> int:
        """Programs of one tile and one split."""
        return -(-self.spec.num_heads // self._part_heads)

    @property
    def _part_heads(self) -> int:
        return min(self.spec.num_heads, count_latent_rows(self.itemsize))

    @cached_property
    def both_scales(self) -> tuple[Tensor | None, Tensor | None]:
        """The scales of rows, of which keys and values are parts."""
        return (None, None) if self.scales is None else (self.scales[0], None)

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
        shared_dim = spec.key_dim - spec.value_dim
        rows = round_side(num_queries * self._part_heads)
        size = self.find_size(rows)
        is_chunk = chosen is not tiles.decodes
        attend_latents[self.make_grid(len(chosen), splits, is_chunk=is_chunk)](
            query,
            output,
            sums,
            peaks,
            self.cache,
            self.both_scales[0],
            table,
            chosen,
            spec.scaling,
            *query.stride()[:2],
            table.stride(0),
            NUM_HEADS=spec.num_heads,
            PART_HEADS=self._part_heads,
            LATENT_DIM=spec.value_dim,
            SHARED_DIM=shared_dim,
            LATENT_WIDTH=round_side(spec.value_dim),
            SHARED_WIDTH=round_side(shared_dim),
            BLOCK_SIZE=self.cache.shape[1],
            HAS_SCALES=self.scales is not None,
            NUM_SPLITS=splits,
            TILE_ROWS=rows,
            TILE_KEYS=size.keys,
            IS_CHUNK=is_chunk,
            num_warps=size.warps,
            num_stages=size.stages,
        )

    def rotate(
        self,
        heads: Tensor,
        low: Tensor,
        query: Tensor,
        latent_norm: Tensor,
        epsilon: float,
        tiles: Tiles,
        angles: Angles,
    ) -> None:
        """Rotate queries of shared keys, and write latents to the cache.

        Args:
          heads: (num_tokens, num_heads * (own_dim + shared_dim)), the queries
          low: (num_tokens, key_dim), latents and shared keys; tokens may be further apart
          query: (num_tokens, num_heads, key_dim), whose last numbers are written
          latent_norm: (value_dim,) float32
        """
        spec, table = self.spec, tiles.get_table(self.is_windowed)
        shared_dim = spec.key_dim - spec.value_dim
        rotary_dim = angles.cos.shape[1]
        rows = None
        if self.scales is not None:
            # A row has one scale, which is known when all of it is.
            rows = query.new_empty((len(heads), 1, spec.key_dim))
        rotate_latents[len(heads), 2](
            heads,
            low,
            query,
            self.cache if rows is None else rows,
            table,
            tiles.slots,
            tiles.positions,
            angles.cos,
            angles.sin,
            angles.rows,
            latent_norm,
            epsilon,
            heads.stride(0),
            low.stride(0),
            table.stride(0),
            NUM_HEADS=spec.num_heads,
            HEADS_WIDTH=round_up(spec.num_heads),
            OWN_DIM=heads.shape[1] // spec.num_heads - shared_dim,
            SHARED_DIM=shared_dim,
            LATENT_DIM=spec.value_dim,
            LATENT_WIDTH=round_up(spec.value_dim),
            ROTARY=rotary_dim,
            HALF_WIDTH=round_up(rotary_dim // 2),
            REST_WIDTH=round_up(shared_dim - rotary_dim),
            BLOCK_SIZE=self.cache.shape[1],
            IS_PAGED=rows is None,
        )
        if rows is not None:
            self.write(rows, rows, tiles)
