"""Choose tokens by the temperature alone, or the likeliest: no top-k, top-p and min-p.

    scan_part   (row, part)  the token of one part of the vocabulary
    take_best   (row,)       the token

The logits are read once, and nothing is computed for greedy rows but the largest of them. Tokens
are those that draw.py chooses.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .draw import add_noise, find_first, has_token, keep_token, scale
from .follow import follow, may_follow


@may_follow
@triton.jit
def scan_part(
    logits,
    temperatures,
    keys,
    places,
    peaks,
    best,
    row_stride,
    VOCABULARY: tl.constexpr,
    PART: tl.constexpr,
    HAS_PLACES: tl.constexpr,
):
    """Find the token of one part; the grid is (rows, parts).

    Args:
      logits: (num_rows, VOCABULARY) of any float type, rows row_stride apart
      temperatures: (num_rows,) float32; 0 takes the likeliest token
      keys: (num_rows,) int64, of the noise
      places: (num_rows,) int32, below 0 for rows without a token, if HAS_PLACES
      peaks: (num_rows, num_parts) float32, the largest logit, or sum of logit and noise
      best: (num_rows, num_parts) int32, the first token with it
    """
    follow()
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if has_token(places, row, HAS_PLACES):
        temperature = tl.load(temperatures + row)
        tokens = part * PART + tl.arange(0, PART)
        inside = tokens < VOCABULARY
        source = logits + row * row_stride + tokens
        values = tl.load(source, mask=inside, other=float("-inf")).to(tl.float32)
        if temperature > 0.0:
            key = tl.load(keys + row)
            low, high = key.to(tl.uint32), (key >> 32).to(tl.uint32)
            values = add_noise(scale(values, temperature), inside, tokens, low, high)
        else:
            values = tl.where(values != values, float("inf"), values)
        peak, token = find_first(values, tokens, VOCABULARY)
        place = row * tl.num_programs(1) + part
        tl.store(peaks + place, peak)
        tl.store(best + place, token)


@may_follow
@triton.jit
def take_best(
    peaks,
    best,
    places,
    slots,
    last_tokens,
    chosen,
    VOCABULARY: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_PLACES: tl.constexpr,
):
    """Take the best token of all parts; the grid is (rows,).

    Args:
      peaks, best: (num_rows, NUM_PARTS), as scan_part writes them
      places, slots, last_tokens, chosen: see keep_token
    """
    follow()
    row = tl.program_id(0).to(tl.int64)
    if has_token(places, row, HAS_PLACES):
        parts = tl.arange(0, WIDTH)
        inside, sources = parts < NUM_PARTS, row * NUM_PARTS + parts
        found = tl.load(peaks + sources, mask=inside, other=float("-inf"))
        tokens = tl.load(best + sources, mask=inside, other=VOCABULARY)
        # Parts are in the order of the vocabulary, so the smallest token is the first.
        _, token = find_first(found, tokens, VOCABULARY)
        keep_token(
            token, row, places, slots, last_tokens, chosen, VOCABULARY, HAS_PLACES
        )
