"""The paged cache of keys and values.

A cache of int8 keeps a scale for each token, head and side, beside the numbers in eight bits:

    scale = (largest magnitude of the numbers) / 127
    code  = number / scale, rounded; halves to even

A token gets its scales when it is written, from its own numbers alone, and every query reads
the codes, those of its own step too. So an answer does not depend on chunks, batches,
preemption or shared prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
import mmap

import torch
from torch import Tensor

from .backend import PagedModel

# kernels/native/kv_cache.h has the same number.
_SMALLEST_PEAK = 1e-30


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """One layer's keys and values.

    A token's keys and values are side by side, so that one copy moves both. Gathering
    takes a sixth less time than from two tensors.

    Args:
      blocks: (num_blocks, block_size, num_kv_heads, kept_dim)
      key_dim: the place in the last dimension at which values begin; all of it, if values
        are the first numbers of keys.
      dtype: type of the keys and values that are written and read.
      scales: (num_sides, num_blocks, num_kv_heads, block_size) float32, of keys and of
        values, if blocks are int8; None otherwise.
    """

    blocks: Tensor
    key_dim: int
    dtype: torch.dtype
    scales: Tensor | None = None

    def write(self, cache_slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store the keys and values of tokens.

        Args:
          cache_slots: (num_tokens,) int64, block * block_size + offset
          key, value: (num_tokens, num_kv_heads, dim) each
        """
        kept: tuple[Tensor, ...] = (key,) if self._has_keys_alone else (key, value)
        if self.scales is not None:
            kept = self._quantise(cache_slots, kept, self.scales)
        rows = torch.cat(kept, dim=-1)  # (num_tokens, num_kv_heads, kept_dim)
        if self.scales is None:
            _make_finite(rows)
        self.blocks.flatten(0, 1).index_copy_(0, cache_slots, rows)

    def read(self, block_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Copy blocks out of the cache, one after the other.

        Returns:
          (num_block_ids * block_size, num_kv_heads, key_dim), keys
          (num_block_ids * block_size, num_kv_heads, value_dim), values; the keys again, if
            values are their first numbers
        """
        rows = self.blocks.index_select(0, block_ids).flatten(0, 1)
        sides = [rows[..., : self.key_dim]]
        if not self._has_keys_alone:
            sides.append(rows[..., self.key_dim :])
        if self.scales is not None:
            sides = [
                self._restore(codes, scales.index_select(0, block_ids))
                for codes, scales in zip(sides, self.scales, strict=True)
            ]
        return sides[0], sides[-1]

    def _quantise(
        self, cache_slots: Tensor, sides: tuple[Tensor, ...], scales: Tensor
    ) -> tuple[Tensor, ...]:
        """Store the scales of tokens, and return their codes."""
        block_size = self.blocks.shape[1]
        blocks, offsets = cache_slots // block_size, cache_slots % block_size
        codes, own = zip(*map(quantise, sides))
        for kept, new in zip(scales, own, strict=True):
            kept[blocks, :, offsets] = new  # (num_tokens, num_kv_heads)
        return codes

    def _restore(self, codes: Tensor, scales: Tensor) -> Tensor:
        """Turn codes into numbers.

        Args:
          codes: (num_tokens, num_kv_heads, dim) int8
          scales: (num_blocks, num_kv_heads, block_size)
        """
        by_token = scales.transpose(1, 2).flatten(0, 1)  # (num_tokens, num_kv_heads)
        return (codes * by_token[..., None]).to(self.dtype)

    @property
    def _has_keys_alone(self) -> bool:
        return self.blocks.shape[-1] == self.key_dim


def quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Round rows of numbers to eight bits, each with a scale of its own.

    Args:
      rows: (..., dim); numbers that are not finite become 0

    Returns:
      (..., dim) int8, and (...) float32 scales
    """
    rows = _make_finite(rows.to(torch.float32, copy=True))
    peaks = rows.abs().amax(dim=-1)
    # torch makes `127 / peaks` from an inverse, rounded twice; a tie would get another code than
    # from the kernels. Below the smallest peak, the quotient would overflow.
    quotients = torch.full_like(peaks, 127) / peaks
    inverses = torch.where(peaks > _SMALLEST_PEAK, quotients, 0.0)
    return (rows * inverses[..., None]).round().to(torch.int8), peaks / 127


def round_trip(rows: Tensor) -> Tensor:
    """Return rows as a cache of eight bits gives them back, in float32."""
    codes, scales = quantise(rows)
    return codes * scales[..., None]


def _make_finite(rows: Tensor) -> Tensor:
    """Make 0 of all numbers that are not finite, in place.

    Otherwise a sequence whose numbers overflow would spoil the next sequence in its blocks: 0
    times NaN is NaN.
    """
    return rows.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def allocate(model: PagedModel) -> tuple[LayerCache, ...]:
    """Return each layer's cache, filled with zeros; layers that share one have the same.

    The unwritten part of a block is read too, and then masked. It must be finite, because
    NaN times a weight of 0 is NaN.
    """
    caches: list[LayerCache] = []
    for layer, is_windowed in zip(model.layers, model.list_windowed()):
        if layer.shares is not None:
            caches.append(caches[layer.shares])
            continue
        num_blocks = model.num_window_blocks if is_windowed else model.num_blocks
        assert num_blocks is not None, "layers with windows have their own blocks"
        shape = (
            num_blocks,
            model.block_size,
            layer.num_kv_heads,
            layer.kept_dim,
        )
        kv_dtype = model.kv_dtype or model.dtype
        scales = None
        if kv_dtype == torch.int8:
            scales_shape = (layer.num_sides, shape[0], shape[2], shape[1])
            scales = make_zeros(scales_shape, torch.float32, model.device)
        caches.append(
            LayerCache(
                blocks=make_zeros(shape, kv_dtype, model.device),
                key_dim=layer.key_dim,
                dtype=model.dtype,
                scales=scales,
            )
        )
    return tuple(caches)


def make_zeros(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Anonymous memory is zero and takes no room until it is touched, so a starting server
    # does not wait until gigabytes are filled.
    memory = mmap.mmap(
        -1,
        math.prod(shape) * dtype.itemsize,
        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
    )
    return torch.frombuffer(memory, dtype=dtype).view(shape)
