"""Rotary positions of attention over latents, and the write of latents to the cache."""

from __future__ import annotations

import triton
import triton.language as tl

from .attend import keep_finite
from .follow import follow, may_follow
from .norm import normalize
from .rotate import rotate_heads


@may_follow
@triton.jit
def rotate_latents(
    heads,
    low,
    query,
    cache,
    tables,
    slots,
    positions,
    cos,
    sin,
    angles,
    latent_norm,
    epsilon,
    heads_stride,
    low_stride,
    slot_stride,
    NUM_HEADS: tl.constexpr,
    HEADS_WIDTH: tl.constexpr,
    OWN_DIM: tl.constexpr,
    SHARED_DIM: tl.constexpr,
    LATENT_DIM: tl.constexpr,
    LATENT_WIDTH: tl.constexpr,
    ROTARY: tl.constexpr,
    HALF_WIDTH: tl.constexpr,
    REST_WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_PAGED: tl.constexpr,
):
    """Rotate one token's queries of shared keys, and write its latent; the grid is (tokens, 2).

    Program 0 rotates the queries, program 1 normalises the latent, rotates the shared key
    and writes both.

    Args:
      heads: (num_tokens, heads_stride), whose first numbers are NUM_HEADS queries, of OWN_DIM
        numbers and of SHARED_DIM numbers for the shared key
      low: (num_tokens, low_stride): the latent, and the shared key behind it
      query: (num_tokens, NUM_HEADS, LATENT_DIM + SHARED_DIM); of each head, the numbers for
        the shared key are written
      cache: (num_blocks, BLOCK_SIZE, LATENT_DIM + SHARED_DIM) if IS_PAGED; else the rows of the
        tokens, (num_tokens, LATENT_DIM + SHARED_DIM)
      tables, slots, positions, cos, sin, angles: as in `rotate_and_write`.
      latent_norm: (LATENT_DIM,) float32
      LATENT_WIDTH: LATENT_DIM, rounded up to a power of two.
    """
    follow()
    token = tl.program_id(0).to(tl.int64)
    key_dim: tl.constexpr = LATENT_DIM + SHARED_DIM
    angle = tl.load(angles + token) * ROTARY
    if tl.program_id(1) == 0:
        rotate_heads(
            heads + token * heads_stride + OWN_DIM,
            query + token * NUM_HEADS * key_dim + LATENT_DIM,
            None,
            cos + angle,
            sin + angle,
            None,
            epsilon,
            OWN_DIM + SHARED_DIM,
            key_dim,
            0,
            NUM_HEADS,
            HEADS_WIDTH,
            SHARED_DIM,
            ROTARY,
            HALF_WIDTH,
            REST_WIDTH,
            False,
            False,
        )
    else:
        slot = tl.load(slots + token)
        if slot < 0:
            return
        row = token
        if IS_PAGED:
            position = tl.load(positions + token)
            block = tl.load(tables + slot * slot_stride + position // BLOCK_SIZE)
            row = block * BLOCK_SIZE + position % BLOCK_SIZE
        target = cache + row * key_dim
        source = low + token * low_stride
        columns = tl.arange(0, LATENT_WIDTH)
        inside = columns < LATENT_DIM
        latent = tl.load(source + columns, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(latent_norm + columns, mask=inside, other=0.0)
        latent = normalize(latent, weight, epsilon, LATENT_DIM)
        latent = keep_finite(latent.to(cache.dtype.element_ty))
        tl.store(target + columns, latent, mask=inside)
        rotate_heads(
            source + LATENT_DIM,
            target + LATENT_DIM,
            None,
            cos + angle,
            sin + angle,
            None,
            epsilon,
            SHARED_DIM,
            SHARED_DIM,
            0,
            1,
            1,
            SHARED_DIM,
            ROTARY,
            HALF_WIDTH,
            REST_WIDTH,
            False,
            False,
        )
