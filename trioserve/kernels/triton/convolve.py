"""The causal convolution of each channel with its last inputs.

    y[t] = bias + sum over i of taps[i] * x[t - NUM_TAPS + 1 + i]

The inputs before a row of a step are in the slot of its sequence: the last NUM_TAPS - 1 ones,
the oldest first. A row at position 0 reads none, whoever had the slot before.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .follow import follow, may_follow
from .tiles import ROW_NUMBERS

_ROW_NUMBERS = tl.constexpr(ROW_NUMBERS)


@triton.jit
def read_row(rows, row):
    """Return the numbers of a row; see `list_rows` in tiles.py."""
    place = rows + row * _ROW_NUMBERS
    begin = tl.load(place).to(tl.int64)
    slot = tl.load(place + 2).to(tl.int64)
    return begin, tl.load(place + 1), slot, tl.load(place + 3), tl.load(place + 4)


@triton.jit
def read_inputs(
    x,
    kept,
    places,
    channels,
    count,
    position,
    x_stride,
    NUM_CHANNELS: tl.constexpr,
    NUM_TAPS: tl.constexpr,
    IS_GATED: tl.constexpr,
):
    """Return the inputs of some channels at places of a row, float32.

    Args:
      x: the numbers of the row's first token
      kept: the last inputs before the row
      places: (n, 1); negative ones are before the row, others than 0 <= place < count have
        no input
      channels: (1, m)
    """
    is_channel = channels < NUM_CHANNELS
    is_new = (places >= 0) & (places < count) & is_channel
    at = x + places * x_stride + channels
    new = tl.load(at, mask=is_new, other=0.0)
    if IS_GATED:
        values = tl.load(at + 2 * NUM_CHANNELS, mask=is_new, other=0.0)
        # Rounded as a slot keeps it, so that no answer depends on the ends of chunks.
        new = (new.to(tl.float32) * values.to(tl.float32)).to(new.dtype)
    before = places + (NUM_TAPS - 1)
    # A sequence that begins has none there, whoever had its slot.
    oldest = tl.where(position > 0, 0, NUM_TAPS - 1)
    is_old = (places < 0) & (before >= oldest) & is_channel
    old = tl.load(kept + before * NUM_CHANNELS + channels, mask=is_old, other=0.0)
    return tl.where(is_new, new, old).to(tl.float32)


@may_follow
@triton.jit(do_not_specialize_on_alignment=["rows"])
def convolve(
    x,
    taps,
    bias,
    kept,
    rows,
    output,
    x_stride,
    NUM_CHANNELS: tl.constexpr,
    NUM_TAPS: tl.constexpr,
    TAPS_WIDTH: tl.constexpr,
    IS_GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Convolve some channels of one row; the grid is (rows, blocks of channels).

    A program reads the slot before it writes there, and no other one has its channels.

    Args:
      x: (num_tokens, x_stride), whose first numbers are the inputs. If IS_GATED, gates
        before the convolution, gates behind it, and values, NUM_CHANNELS each; otherwise
        SiLU follows
      taps: (NUM_TAPS, NUM_CHANNELS) float32, that of the newest input last
      bias: (NUM_CHANNELS,) float32, if HAS_BIAS
      kept: (num_places, NUM_TAPS - 1, NUM_CHANNELS), of the type of x
      rows: (num_rows, ROW_NUMBERS) int32
      output: (num_tokens, NUM_CHANNELS)
      TAPS_WIDTH: NUM_TAPS - 1, rounded up to a power of two.
      TOKENS: tokens at a time.
    """
    follow()
    begin, count, slot, position, num_kept = read_row(rows, tl.program_id(0))
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    is_channel = channels < NUM_CHANNELS
    x += begin * x_stride
    output += begin * NUM_CHANNELS
    kept += slot * (NUM_TAPS - 1) * NUM_CHANNELS
    for first in range(0, count, TOKENS):
        tokens = (first + tl.arange(0, TOKENS)[:, None]).to(tl.int64)
        inside = (tokens < count) & is_channel
        total = tl.zeros((TOKENS, BLOCK), tl.float32)
        if HAS_BIAS:
            total += tl.load(bias + channels, mask=is_channel, other=0.0)
        for i in tl.static_range(NUM_TAPS):
            tap = tl.load(
                taps + i * NUM_CHANNELS + channels, mask=is_channel, other=0.0
            )
            total += tap * read_inputs(
                x,
                kept,
                tokens - (NUM_TAPS - 1 - i),
                channels,
                count,
                position,
                x_stride,
                NUM_CHANNELS,
                NUM_TAPS,
                IS_GATED,
            )
        if IS_GATED:
            gates = x + tokens * x_stride + NUM_CHANNELS + channels
            total *= tl.load(gates, mask=inside, other=0.0).to(tl.float32)
        else:
            total *= tl.sigmoid(total)
        place = output + tokens * NUM_CHANNELS + channels
        tl.store(place, total.to(output.dtype.element_ty), mask=inside)
    # Nothing is kept of padding, and of a single token that comes again.
    if num_kept > 0:
        last = tl.arange(0, TAPS_WIDTH)[:, None].to(tl.int64)
        numbers = read_inputs(
            x,
            kept,
            last + num_kept - (NUM_TAPS - 1),
            channels,
            num_kept,
            position,
            x_stride,
            NUM_CHANNELS,
            NUM_TAPS,
            IS_GATED,
        )
        # All threads have read before one of them writes.
        tl.debug_barrier()
        tl.store(
            kept + last * NUM_CHANNELS + channels,
            numbers.to(kept.dtype.element_ty),
            mask=(last < NUM_TAPS - 1) & is_channel,
        )
