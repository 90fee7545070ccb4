"""Reads weights in fewer bits than 16: a tile of them becomes numbers of the model's type.

stored.py tells how the formats lie in memory. All of them are read by operations on bits and
by float32, so the same code runs on all GPUs: some have no instructions for eight-bit floats.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .follow import IS_INTERPRETED


@triton.jit
def read_tile(
    codes,
    scales,
    zeros,
    rows,
    begin,
    row_length,
    num_groups,
    num_inputs,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    INPUTS: tl.constexpr,
    DTYPE: tl.constexpr,
    IS_SCALED: tl.constexpr = True,
):
    """Return the weights of some outputs for INPUTS neighbouring inputs.

    Args:
      codes: the first row of a matrix; rows are row_length elements apart
      scales, zeros: (num_outputs, num_groups), of that matrix; zeros only if HAS_ZEROS, in the
        type of scales
      rows: (OUTPUTS,), of the matrix; all of them are there
      begin: the first input, a multiple of INPUTS.
      num_inputs: of a row, for the format "plain" alone: other rows are padded.
      FORMAT: one of stored.FORMATS.
      GROUP: inputs that share a scale; 0 is all.
      INPUTS: 64 or 128.
      DTYPE: of the weights, also of "plain" ones.
      IS_SCALED: they are multiplied by their scales; without it, `read_factors` returns what
        sums of them must be multiplied by.

    Returns:
      (OUTPUTS, INPUTS) DTYPE
    """
    if FORMAT == "plain":
        places = begin + tl.arange(0, INPUTS)
        weights = tl.load(
            codes + rows[:, None] * row_length + places[None, :],
            mask=(places < num_inputs)[None, :],
            other=0.0,
        )
    else:
        PARTS: tl.constexpr = INPUTS // GROUP if 0 < GROUP and GROUP < INPUTS else 1
        first = 0 if GROUP == 0 else begin // GROUP
        groups = first + tl.arange(0, PARTS)
        places = rows[:, None] * num_groups + groups[None, :]
        shape: tl.constexpr = (rows.shape[0], PARTS, INPUTS // PARTS)
        # Not all differences of codes of int8 and zeros are numbers of bfloat16.
        is_wide: tl.constexpr = FORMAT == "int8" and HAS_ZEROS
        numbers = _read_codes(
            *(codes, rows, begin, row_length, FORMAT, INPUTS),
            tl.float16 if is_wide else DTYPE,
        )
        numbers = tl.reshape(numbers, shape)
        exact: tl.constexpr = numbers.dtype
        if HAS_ZEROS:
            offsets = tl.load(zeros + places).to(tl.float32)
            if FORMAT == "int4":
                offsets += 128.0 if exact == tl.bfloat16 else 1024.0
            numbers = numbers - tl.expand_dims(offsets, 2).to(exact)
        elif FORMAT == "int4":
            numbers = numbers - (136.0 if exact == tl.bfloat16 else 1032.0)
        if IS_SCALED:
            factors = tl.expand_dims(_read_scales(tl.load(scales + places), FORMAT), 2)
            # Powers of 2 are exact in bfloat16, whose exponents are those of float32.
            is_power: tl.constexpr = FORMAT == "mxfp4" and DTYPE == tl.bfloat16
            if exact == DTYPE and (is_power or scales.dtype.element_ty == DTYPE):
                # Two numbers at a time, rounded as by way of float32.
                numbers = numbers * factors.to(DTYPE)
            else:
                numbers = numbers.to(tl.float32) * factors
        weights = tl.reshape(numbers, (rows.shape[0], INPUTS))
    return weights.to(DTYPE)


@triton.jit
def read_factors(scales, rows, begin, num_groups, FORMAT: tl.constexpr, GROUP):
    """Return the scales of the group of an input, (OUTPUTS,) float32.

    Args: as in `read_tile`.
    """
    group = 0 if GROUP == 0 else begin // GROUP
    return _read_scales(tl.load(scales + rows * num_groups + group), FORMAT)


@triton.jit
def _read_codes(
    codes,
    rows,
    begin,
    row_length,
    FORMAT: tl.constexpr,
    INPUTS: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Return codes as numbers, (OUTPUTS, INPUTS).

    Conversions are slow, so codes become bits of bfloat16 or float16, two at a time. Codes of
    int4 are the lowest bits of 128 or 1024, which is left to subtract. Floats of few bits are
    those of floats whose exponents have another bias; a factor makes up for it.
    """
    OUTPUTS: tl.constexpr = rows.shape[0]
    # The interpreter does not compute with bfloat16.
    short: tl.constexpr = DTYPE == tl.bfloat16 and not IS_INTERPRETED
    type: tl.constexpr = tl.bfloat16 if short else tl.float16
    if FORMAT == "int4":
        words = _read_nibbles(codes, rows, begin, row_length, INPUTS) & 0x000F000F
        numbers = _take_halves(words | (0x43004300 if short else 0x64006400), type)
    elif FORMAT == "mxfp4":
        words = _read_nibbles(codes, rows, begin, row_length, INPUTS)
        # The sign, and three bits behind a part of the exponent, whose bias is 1.
        rest = words & 0x00070007
        rest = rest << 6 if short else rest << 9
        numbers = _take_halves(((words << 12) & -0x7FFF8000) | rest, type)
        numbers *= 2.0**126 if short else 2.0**14
    else:
        places = begin // 4 + tl.arange(0, INPUTS // 4)
        words = tl.load(codes + rows[:, None] * row_length + places[None, :])
        words = tl.reshape(words, (OUTPUTS, INPUTS // 64, 16))
        if FORMAT == "fp8":
            # The codes in the high bytes of 16 bits.
            words = tl.permute(tl.join(words << 8, words), (0, 1, 3, 2))
            # The sign, and the rest behind a part of the exponent, whose bias is 7.
            rest = words & 0x7F007F00
            rest = rest >> 4 if short else rest >> 1
            numbers = _take_halves((words & -0x7FFF8000) | rest, type)
            numbers *= 2.0**120 if short else 2.0**8
        else:
            words = tl.permute(tl.join(words, words >> 8), (0, 1, 3, 2))
            if short:
                # Seven bits behind 128; and 128, or 256 for a sign.
                numbers = _take_halves((words & 0x007F007F) | 0x43004300, type)
                numbers -= _take_halves((words & 0x00800080) | 0x43004300, type)
            else:
                # 128 more than the code, behind 1024.
                words = (words & 0x00FF00FF) ^ 0x64806480
                numbers = _take_halves(words, type) - 1152.0
    return tl.reshape(numbers, (OUTPUTS, INPUTS))


@triton.jit
def _read_nibbles(codes, rows, begin, row_length, INPUTS: tl.constexpr):
    """Return words in whose halves the lowest four bits are codes, in order."""
    places = begin // 128 * 16 + tl.arange(0, 16 * ((INPUTS + 127) // 128))
    words = tl.load(codes + rows[:, None] * row_length + places[None, :])
    if INPUTS == 64:
        # A half of a run.
        words = words >> (begin % 128 // 8)
        words = tl.reshape(words, (rows.shape[0], 1, 16))
    else:
        words = tl.reshape(words, (rows.shape[0], INPUTS // 128, 16))
        words = tl.permute(tl.join(words, words >> 8), (0, 1, 3, 2))
        words = tl.reshape(words, (rows.shape[0], INPUTS // 64, 16))
    return tl.permute(tl.join(words, words >> 4), (0, 1, 3, 2))


@triton.jit
def _take_halves(words, DTYPE: tl.constexpr):
    """Return the low and the high 16 bits of each word, side by side, as floats."""
    low, high = words.to(tl.int16), (words >> 16).to(tl.int16)
    return tl.join(low, high).to(DTYPE, bitcast=True)


@triton.jit
def _read_scales(scales, FORMAT: tl.constexpr):
    """Return scales as numbers, float32."""
    if FORMAT == "mxfp4":
        # An exponent, with a bias of 127.
        bits = scales.to(tl.int32) << 23
        # 2 ** -127 is not a normal number.
        factors = tl.where(bits == 0, 0x400000, bits).to(tl.float32, bitcast=True)
    else:
        factors = scales.to(tl.float32)
    return factors
