"""Norms by the root mean square, with the sum before them.

Source: Zhang and Sennrich 2019 (RMSNorm).
"""

from __future__ import annotations

import triton
import triton.language as tl

from .follow import follow, may_follow


@triton.jit
def normalize(numbers, weight, epsilon, SIZE: tl.constexpr):
    """Return numbers over their root mean square, times a weight; all float32."""
    mean = tl.sum(numbers * numbers, 0) / SIZE
    return numbers * tl.rsqrt(mean + epsilon) * weight


@may_follow
@triton.jit
def add_and_normalize(
    hidden,
    added,
    added_weight,
    weight,
    output,
    scale,
    output_scale,
    epsilon,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_ADDED: tl.constexpr,
    HAS_ADDED_NORM: tl.constexpr,
    HAS_OUTPUT: tl.constexpr,
):
    """Add to the hidden state of one token, and normalise the sum; the grid is (tokens,).

    Args:
      hidden: (num_tokens, SIZE); the sum replaces it
      added: the same shape, if HAS_ADDED
      added_weight: (SIZE,) float32, of the norm of `added` before the sum, if
        HAS_ADDED_NORM
      weight: (SIZE,) float32, of the norm of the sum
      output: (num_tokens, SIZE), if HAS_OUTPUT
      scale: factor of `added`.
      output_scale: factor of the sum, if HAS_ADDED.
      WIDTH: SIZE, rounded up to a power of two.
    """
    follow()
    row = tl.program_id(0).to(tl.int64) * SIZE
    columns = tl.arange(0, WIDTH)
    inside = columns < SIZE
    total = tl.load(hidden + row + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_ADDED:
        more = tl.load(added + row + columns, mask=inside, other=0.0).to(tl.float32)
        if HAS_ADDED_NORM:
            factors = tl.load(added_weight + columns, mask=inside, other=0.0)
            more = normalize(more, factors, epsilon, SIZE)
        rounded = ((total + scale * more) * output_scale).to(hidden.dtype.element_ty)
        tl.store(hidden + row + columns, rounded, mask=inside)
        # The next layer reads the stored numbers.
        total = rounded.to(tl.float32)
    if HAS_OUTPUT:
        factors = tl.load(weight + columns, mask=inside, other=0.0)
        normed = normalize(total, factors, epsilon, SIZE)
        tl.store(
            output + row + columns, normed.to(output.dtype.element_ty), mask=inside
        )
