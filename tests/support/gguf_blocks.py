"""Blocks of chance of GGUF's types, to many of which the package gguf cannot quantise."""

from __future__ import annotations

import gguf
from gguf import GGMLQuantizationType as Kind
import numpy as np
from numpy.typing import NDArray

# Bytes of a block before each of its float16 numbers.
_SCALES: dict[Kind, tuple[int, ...]] = {
    **dict.fromkeys((Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q5_0, Kind.Q8_0), (0,)),
    **dict.fromkeys((Kind.Q4_1, Kind.Q5_1, Kind.Q4_K, Kind.Q5_K), (0, 2)),
    **{Kind.Q2_K: (80, 82), Kind.Q3_K: (108,), Kind.Q6_K: (208,)},
    **dict.fromkeys((Kind.IQ4_NL, Kind.IQ4_XS), (0,)),
    Kind.MXFP4: (),
}


def draw_blocks(
    shape: tuple[int, ...], kind: Kind, seed: int, scale: float | None = None
) -> NDArray[np.uint8]:
    """Return the rows of weights.

    Args:
      shape: of the weights.
      scale: of all blocks; None draws scales below 2.
    """
    block_size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    *rows, size = shape
    chance = np.random.default_rng(seed)
    shape = *rows, size // block_size, num_bytes
    blocks = chance.integers(0, 256, shape, dtype=np.uint8)
    for place in _SCALES[kind]:
        if scale is None:
            # This leaves out infinity and NaN.
            blocks[..., place + 1] &= 0x3F
        else:
            blocks[..., place : place + 2] = np.array([scale], np.float16).view(
                np.uint8
            )
    if kind == Kind.MXFP4:
        # An exponent, of numbers below 6.
        blocks[..., 0] = 112 + blocks[..., 0] % 16
    return blocks.reshape(*rows, -1)
