"""The sizes of blocks of numbers: Triton wants powers of two."""

from __future__ import annotations

from typing import NamedTuple

# The smallest side of a product on tensor cores.
_LEAST_SIDE = 16


def round_up(number: int) -> int:
    """Return the next power of two; 0 for 0."""
    return 1 << (number - 1).bit_length() if number else 0


def round_side(number: int) -> int:
    """Return the next power of two that a side of a product can have."""
    return max(_LEAST_SIDE, round_up(number))


class AttendSize(NamedTuple):
    """The sizes of one program of `attend`.

    Attributes:
      keys: that are read at a time.
      warps: of 32 threads, which share the program.
      stages: reads of keys and values that are under way at once.
    """

    keys: int
    warps: int
    stages: int = 3


def count_chunk_rows(width: int, itemsize: int) -> int:
    """Return the rows of the product of a chunk's tile: tokens times heads of its group.

    Args:
      width: numbers of a head, rounded up to a power of two.
      itemsize: bytes of a number that is multiplied.
    """
    return 64 if itemsize <= 2 and width <= 256 else _LEAST_SIDE


def count_long_rows(width: int, itemsize: int) -> int:
    """Return the rows of the product of a tile where chunks have tiles for the whole device.

    Half as many programs read each key then. The device measures whether that is faster.

    Args:
      width, itemsize: as in `count_chunk_rows`.
    """
    rows = count_chunk_rows(width, itemsize)
    return 128 if rows == 64 and width <= 128 else rows


def count_most_splits(width: int) -> int:
    """Return the most splits of the keys of a decode, which `merge` puts together.

    A sequence with 16,384 tokens alone on an H100 took a sixth less time by 64 than by 32. Wider
    heads would need too many registers.
    """
    return 64 if width <= 128 else 32


def count_merge_warps(splits: int, dim: int) -> int:
    """Return the warps of a program of `merge`, whose numbers shall stay in registers."""
    return 8 if splits * round_side(dim) > 4096 else 4


def choose_size(
    rows: int, width: int, itemsize: int, *, has_scales: bool = False
) -> AttendSize:
    """Return the largest size whose numbers stay in registers.

    The compiler tells it without a device, for compute capability 8.0, 8.9 and 9.0:
    tests/kernels/triton/test_compile.py. The sizes for chunks, in 16 bits and up to 128 numbers a
    head, were measured on an H100: bench/RESULTS.md.

    Args:
      rows: of the product of a tile.
      width, itemsize: as in `count_chunk_rows`.
      has_scales: keys and values are int8.
    """
    if itemsize > 2:
        # Exact float32 has no tensor cores: each thread keeps whole rows and columns.
        if has_scales:
            return AttendSize(32 if width <= 64 else 16, 8, 3 if width <= 128 else 1)
        return AttendSize(32 if width <= 128 else 16, 8)
    if rows <= _LEAST_SIDE:
        if width <= 128 and not has_scales:
            # On an H100, the nearest to the best for one sequence and for many.
            return AttendSize(64, 2)
        return AttendSize(32, 4 if width <= 256 else 8)
    if width <= 128 and rows > 64:
        return AttendSize(16 if has_scales else 32, 8, 2)
    if width <= 128:
        # On an H100, about as fast as FlashAttention 2; 8 warps take twice as long, and 3
        # stages a half longer.
        return AttendSize(16 if has_scales else 32, 4, 2)
    return AttendSize(16, 8)


def list_candidates(
    rows: int,
    width: int,
    itemsize: int,
    *,
    capability: int,
    has_scales: bool = False,
    is_plain: bool = True,
) -> list[AttendSize]:
    """Return the sizes that may be the fastest on a device; `choose_size` gives the first.

    Args:
      rows, width, itemsize, has_scales: as in `choose_size`.
      capability: of the device, times ten. Before 90, fewer sizes stay in registers.
      is_plain: the layer has no window, soft cap or sinks, and the heads of a group are a power
        of two.
    """
    first = choose_size(rows, width, itemsize, has_scales=has_scales)
    if itemsize > 2 or width > 256:
        return [first]
    has_room = capability >= 90
    if rows <= _LEAST_SIDE:
        if width > 128:
            others = [AttendSize(32, 4, 2), AttendSize(64, 8, 2)]
        elif has_scales:
            others = [AttendSize(64, 4), AttendSize(32, 2)]
        else:
            # Of the last, seven programs fit beside each other, of the first four: compiled for
            # 9.0. Short sequences have little else to hide their waits behind.
            others = [AttendSize(128, 4, 2), AttendSize(32, 4), AttendSize(32, 2, 2)]
    elif width > 128:
        others = [AttendSize(16, 8, 2), AttendSize(32, 8, 2)]
    elif rows > 64:
        if has_scales or not has_room:
            others = []
        elif is_plain:
            # The fastest on an H100, when the loop had more instructions.
            others = [AttendSize(32, 4, 3), AttendSize(128, 8, 2)]
        else:
            others = [AttendSize(64, 8, 2)]
    elif has_scales:
        others = [AttendSize(32, 4, 2), AttendSize(32, 8, 2)]
    else:
        # The compiler counts reads of blocks as one round, so keys are read two rounds ahead.
        others = [AttendSize(32, 4, 5)]
        if has_room:
            others.append(AttendSize(64, 4, 2))
    return [first, *others]


class SpanSize(NamedTuple):
    """The sizes of one program of `run_spans`.

    Attributes:
      values: of a head.
      warps: as in AttendSize.
    """

    values: int
    warps: int


# The widest keys whose programs stay in registers and shared memory.
MAX_SPAN_DIM = 256


def choose_span_size(key_width: int, value_dim: int) -> SpanSize:
    """Return the largest size whose numbers stay in registers, as in `choose_size`.

    Args:
      key_width: numbers of a key, rounded up to a side of a product.
      value_dim: values of a head.
    """
    values, warps = (32, 4) if key_width <= 128 else (16, 8)
    return SpanSize(min(values, round_side(value_dim)), warps)


# The widest rows of latents whose program stays in registers and shared memory: DeepSeek's.
MAX_LATENT_DIM = 512
MAX_SHARED_DIM = 64


def count_latent_rows(itemsize: int) -> int:
    """Return the most rows of the product of a tile over latents, as in `count_chunk_rows`."""
    return 32 if itemsize <= 2 else _LEAST_SIDE


def choose_latent_size(
    rows: int, itemsize: int, *, has_scales: bool = False
) -> AttendSize:
    """Return the size of a program of `attend_latents`, as `choose_size` does."""
    if itemsize > 2:
        return AttendSize(16, 8, 1)
    return AttendSize(32, 8 if rows > _LEAST_SIDE or has_scales else 4, 2)
