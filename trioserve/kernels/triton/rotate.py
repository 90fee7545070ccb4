"""Rotary positions of queries and keys, and the write of keys and values to the cache.

A head's first ROTARY numbers are rotated in pairs: number i with number i + ROTARY / 2.

Source: Su et al. 2021 (RoFormer); the pairs are as in transformers' rotate_half.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .attend import find_peaks, find_scales, keep_finite, quantise
from .follow import let_next_begin, may_follow, wait


@triton.jit
def rotate_heads(
    source,
    target,
    scales,
    cos,
    sin,
    norm,
    epsilon,
    head_stride,
    target_stride,
    scale_stride,
    num_heads,
    HEADS_WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    HALF_WIDTH: tl.constexpr,
    REST_WIDTH: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_SCALES: tl.constexpr,
):
    """Normalise and rotate the heads of one token, from `source` to `target`.

    Args:
      cos, sin: (ROTARY,) float32, of the token's position
      norm: (DIM,) float32, if HAS_NORM
      scales: of the heads, float32, written if HAS_SCALES; then `target` is int8
      HALF_WIDTH, REST_WIDTH: ROTARY / 2 and DIM - ROTARY, rounded up to a power of two.
    """
    half: tl.constexpr = ROTARY // 2
    heads = tl.arange(0, HEADS_WIDTH)[:, None]
    begins = source + heads * head_stride
    squares = tl.zeros((HEADS_WIDTH,), tl.float32)
    if ROTARY:
        pairs = tl.arange(0, HALF_WIDTH)[None, :]
        is_pair = (heads < num_heads) & (pairs < half)
        is_angle = pairs < half
        first = tl.load(begins + pairs, mask=is_pair, other=0.0).to(tl.float32)
        second = tl.load(begins + half + pairs, mask=is_pair, other=0.0).to(tl.float32)
        squares += tl.sum(first * first, 1) + tl.sum(second * second, 1)
    if REST_WIDTH:
        rest = ROTARY + tl.arange(0, REST_WIDTH)[None, :]
        is_rest = (heads < num_heads) & (rest < DIM)
        others = tl.load(begins + rest, mask=is_rest, other=0.0).to(tl.float32)
        squares += tl.sum(others * others, 1)
    if HAS_NORM:
        scale = tl.rsqrt(squares / DIM + epsilon)[:, None]
        if ROTARY:
            first *= scale * tl.load(norm + pairs, mask=is_angle, other=0.0)
            second *= scale * tl.load(norm + half + pairs, mask=is_angle, other=0.0)
        if REST_WIDTH:
            others *= scale * tl.load(norm + rest, mask=rest < DIM, other=0.0)
    targets = target + heads * target_stride
    if ROTARY:
        first_cos = tl.load(cos + pairs, mask=is_angle, other=0.0)
        first_sin = tl.load(sin + pairs, mask=is_angle, other=0.0)
        second_cos = tl.load(cos + half + pairs, mask=is_angle, other=0.0)
        second_sin = tl.load(sin + half + pairs, mask=is_angle, other=0.0)
        turned = first * first_cos - second * first_sin
        if not HAS_SCALES:
            numbers = turned.to(target.dtype.element_ty)
            tl.store(targets + pairs, keep_finite(numbers), mask=is_pair)
        second = second * second_cos + first * second_sin
        if not HAS_SCALES:
            numbers = second.to(target.dtype.element_ty)
            tl.store(targets + half + pairs, keep_finite(numbers), mask=is_pair)
    if HAS_SCALES:
        peaks = tl.zeros((HEADS_WIDTH, 1), tl.float32)
        if ROTARY:
            turned, second = keep_finite(turned), keep_finite(second)
            peaks = tl.maximum(find_peaks(turned), find_peaks(second))
        if REST_WIDTH:
            others = keep_finite(others)
            peaks = tl.maximum(peaks, find_peaks(others))
        target_scales = scales + heads * scale_stride
        tl.store(target_scales, find_scales(peaks), mask=heads < num_heads)
        if ROTARY:
            tl.store(targets + pairs, quantise(turned, peaks), mask=is_pair)
            tl.store(targets + half + pairs, quantise(second, peaks), mask=is_pair)
    if REST_WIDTH:
        if HAS_SCALES:
            others = quantise(others, peaks)
        else:
            others = keep_finite(others.to(target.dtype.element_ty))
        tl.store(targets + rest, others, mask=is_rest)


@may_follow
@triton.jit
def rotate_and_write(
    qkv,
    query,
    cache,
    key_scales,
    value_scales,
    tables,
    slots,
    positions,
    cos,
    sin,
    angles,
    query_norm,
    key_norm,
    value_norm,
    epsilon,
    qkv_stride,
    slot_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEADS_WIDTH: tl.constexpr,
    KV_HEADS_WIDTH: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    ROTARY: tl.constexpr,
    HALF_WIDTH: tl.constexpr,
    REST_WIDTH: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    HAS_VALUE_NORM: tl.constexpr,
    KEYS_ARE_VALUES: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Take one token's queries, keys and values apart; the grid is (tokens, 2).

    Program 0 rotates the queries, program 1 rotates the keys and writes keys and values. The
    grid is (tokens, 1) if another layer has written them.

    Args:
      qkv: (num_tokens, qkv_stride), whose first numbers are all heads of queries, keys and,
        unless KEYS_ARE_VALUES, values, one after the other
      query: (num_tokens, NUM_HEADS, KEY_DIM), rotated
      cache, key_scales, value_scales, tables: as in `attend`.
      slots, positions: (num_tokens,) int64, places in the cache; a negative slot belongs
        to a token of padding, of which nothing is written
      cos, sin: (rows, ROTARY) float32
      angles: (num_tokens,) int64, the row of each token in cos and sin
      query_norm, key_norm: (KEY_DIM,) float32, if HAS_NORMS
      value_norm: (VALUE_DIM,) float32, if HAS_VALUE_NORM
      KEYS_ARE_VALUES: values are keys before their norm.
    """
    let_next_begin()
    token = tl.program_id(0).to(tl.int64)
    query_size: tl.constexpr = NUM_HEADS * KEY_DIM
    key_size: tl.constexpr = NUM_KV_HEADS * KEY_DIM
    source = qkv + token * qkv_stride
    angle = tl.load(angles + token) * ROTARY
    if tl.program_id(1) == 0:
        wait()
        rotate_heads(
            source,
            query + token * query_size,
            None,
            cos + angle,
            sin + angle,
            query_norm,
            epsilon,
            KEY_DIM,
            KEY_DIM,
            0,
            NUM_HEADS,
            HEADS_WIDTH,
            KEY_DIM,
            ROTARY,
            HALF_WIDTH,
            REST_WIDTH,
            HAS_NORMS,
            False,
        )
    else:
        position = tl.load(positions + token)
        slot = tl.load(slots + token)
        # Of a token that is padding, no head is written.
        num_written = tl.where(slot < 0, 0, NUM_KV_HEADS)
        slot = tl.maximum(slot, 0)
        block = tl.load(tables + slot * slot_stride + position // BLOCK_SIZE)
        place = block * BLOCK_SIZE + position % BLOCK_SIZE
        wait()
        both: tl.constexpr = KEY_DIM + VALUE_DIM
        target = cache + place * NUM_KV_HEADS * both
        scales = None
        if HAS_SCALES:
            scaled = block * NUM_KV_HEADS * BLOCK_SIZE + position % BLOCK_SIZE
            scales = key_scales + scaled
        rotate_heads(
            source + query_size,
            target,
            scales,
            cos + angle,
            sin + angle,
            key_norm,
            epsilon,
            KEY_DIM,
            both,
            BLOCK_SIZE,
            num_written,
            KV_HEADS_WIDTH,
            KEY_DIM,
            ROTARY,
            HALF_WIDTH,
            REST_WIDTH,
            HAS_NORMS,
            HAS_SCALES,
        )
        heads = tl.arange(0, KV_HEADS_WIDTH)[:, None]
        columns = tl.arange(0, VALUE_WIDTH)[None, :]
        inside = (heads < num_written) & (columns < VALUE_DIM)
        source += query_size if KEYS_ARE_VALUES else query_size + key_size
        values = tl.load(source + heads * VALUE_DIM + columns, mask=inside, other=0.0)
        if HAS_VALUE_NORM:
            factors = tl.load(value_norm + columns, mask=columns < VALUE_DIM, other=0.0)
            values = values.to(tl.float32)
            squares = tl.sum(values * values, 1) / VALUE_DIM
            values *= tl.rsqrt(squares + epsilon)[:, None] * factors
            values = values.to(query.dtype.element_ty)
        targets = target + heads * both + KEY_DIM + columns
        values = keep_finite(values)
        if HAS_SCALES:
            peaks = find_peaks(values)
            scales = value_scales + scaled + heads * BLOCK_SIZE
            tl.store(scales, find_scales(peaks), mask=heads < num_written)
            values = quantise(values, peaks)
        tl.store(targets, values, mask=inside)
