"""Compile the kernels of layers with states for a GPU that need not be there.

    python compile_states.py CAPABILITY DTYPE STATE_DIM

Prints the lines of compiling.py. The sizes are those of Qwen3.5, LFM2, Kimi-Linear and, with
states of 128 numbers for each value, Granite 4.
"""

from __future__ import annotations

import sys

from compiling import compile_for
import torch

from trioserve.kernels.triton.states import Convolution, Recurrence
from trioserve.kernels.triton.tiles import Spans, Tiles


def main(capability: int, dtype: torch.dtype, state_dim: int) -> None:
    compile_for(capability)
    numbers = torch.zeros(1, 5, dtype=torch.int32)
    nothing = torch.zeros(0, 4, dtype=torch.int32)
    # A decode, and a chunk.
    tiles = Tiles(
        tables=nothing,
        slots=nothing,
        positions=nothing,
        decodes=torch.zeros(1, 4, dtype=torch.int32),
        chunks=nothing,
        rows=numbers.repeat(2, 1),
        spans=Spans(numbers[:, :2], numbers[0, :1]) if dtype.itemsize == 2 else None,
    )
    run_recurrence(tiles, dtype, num_heads=32, value_dim=128)
    run_recurrence(tiles, dtype, num_heads=48, value_dim=64, state_dim=state_dim)
    run_recurrence(tiles, dtype, num_heads=32, value_dim=128, has_key_steps=True)
    size = 2048
    convolution = make_convolution(size, 3, dtype)
    convolution.run(torch.zeros(2, 3 * size, dtype=dtype), tiles, is_gated=True)


def make_convolution(
    num_channels: int, num_taps: int, dtype: torch.dtype, *, has_bias: bool = False
) -> Convolution:
    return Convolution(
        torch.zeros(num_taps, num_channels),
        torch.zeros(num_channels) if has_bias else None,
        torch.zeros(2, num_taps - 1, num_channels, dtype=dtype),
    )


def run_recurrence(
    tiles: Tiles,
    dtype: torch.dtype,
    *,
    num_heads: int,
    value_dim: int,
    state_dim: int | None = None,
    has_key_steps: bool = False,
) -> None:
    is_delta, key_dim = state_dim is None, state_dim or 128
    num_keys, num_values = 16 if is_delta else 1, num_heads * value_dim
    if has_key_steps:
        num_keys = num_heads
    num_channels = 2 * num_keys * key_dim + num_values
    inputs = torch.zeros(2, num_channels + num_values + 2 * num_heads, dtype=dtype)
    convolution = make_convolution(num_channels, 4, dtype, has_bias=not is_delta)
    heads = torch.zeros(num_heads)
    wide = None
    if has_key_steps:
        wide = torch.zeros((2, 2, num_values), dtype=dtype).unbind()
    recurrence = Recurrence(
        states=torch.zeros(2, num_heads, value_dim, key_dim),
        num_key_heads=num_keys,
        decay=heads,
        decay_bias=torch.zeros(num_heads * key_dim) if has_key_steps else heads,
        skip=None if is_delta else heads,
        norm=torch.zeros(value_dim if is_delta else num_values),
        num_norm_groups=num_heads if is_delta else 1,
        has_gate_behind=is_delta,
        activation="sigmoid" if has_key_steps else "silu",
        epsilon=1e-6,
    )
    recurrence.run(convolution.run(inputs, tiles), inputs, tiles, wide)


if __name__ == "__main__":
    capability, dtype, state_dim = sys.argv[1:]
    main(int(capability), getattr(torch, dtype), int(state_dim))
