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
      INPUTS: 64 or 128; or 256, if rows without padding are multiples of it.
      DTYPE: of the weights, also of "plain" ones.

    Returns:
      (OUTPUTS, INPUTS) DTYPE, weights times `find_unit`
    """
    if FORMAT == "plain":
        weights = read_plain(codes, rows, begin, row_length, num_inputs, INPUTS)
    else:
        weights = dequantise(
            *(codes, read_scales(scales, rows, begin, num_groups, GROUP, INPUTS)),
            *(zeros, rows, begin, row_length, num_groups),
            *(FORMAT, GROUP, HAS_ZEROS, INPUTS, DTYPE),
        )
    return weights


@triton.jit
def read_plain(codes, rows, begin, row_length, num_inputs, INPUTS: tl.constexpr):
    """Return weights of the format "plain"; all is as in `read_tile`."""
    places = begin + tl.arange(0, INPUTS)
    return tl.load(
        codes + rows[:, None] * row_length + places[None, :],
        mask=(places < num_inputs)[None, :],
        other=0.0,
    )


@triton.jit
def read_scales(
    scales, rows, begin, num_groups, GROUP: tl.constexpr, INPUTS: tl.constexpr
):
    """Return the scales of the groups of INPUTS inputs, or their zeros.

    Args: as in `read_tile`.

    Returns:
      (OUTPUTS, groups), as they are stored
    """
    PARTS: tl.constexpr = INPUTS // GROUP if 0 < GROUP and GROUP < INPUTS else 1
    # Divisions without a sign are shifts.
    first = 0 if GROUP == 0 else tl.cast(tl.cast(begin, tl.uint32) // GROUP, tl.int32)
    groups = first + tl.arange(0, PARTS)
    return tl.load(scales + rows[:, None] * num_groups + groups[None, :])


@triton.jit
def make_factors(scales, FORMAT: tl.constexpr):
    """Return scales, as they are stored, as numbers, float32."""
    if FORMAT == "mxfp4":
        # An exponent, with a bias of 127.
        bits = scales.to(tl.int32) << 23
        # 2 ** -127 is not a normal number.
        factors = tl.where(bits == 0, 0x400000, bits).to(tl.float32, bitcast=True)
    else:
        factors = scales.to(tl.float32)
    return factors


@triton.constexpr_function
def find_unit(FORMAT, HAS_ZEROS, DTYPE):
    """Return what a one is in the numbers of `dequantise`, a power of two.

    It is small, lest scales become infinite, those of less than 4096. In Triton 3.6, constants of
    bfloat16 that are smaller than those of float16 are zero.
    """
    is_short = _choose_type(FORMAT, HAS_ZEROS, DTYPE) == tl.bfloat16
    return 2.0**-17 if is_short and FORMAT in ("int4", "int8") else 1.0


@triton.constexpr_function
def _choose_type(FORMAT, HAS_ZEROS, DTYPE):
    """Return the type of codes as numbers; the interpreter does not compute with bfloat16."""
    # Not all differences of codes of int8 and zeros are numbers of bfloat16.
    is_wide = FORMAT == "int8" and HAS_ZEROS
    is_short = DTYPE == tl.bfloat16 and not is_wide and not IS_INTERPRETED
    return tl.bfloat16 if is_short else tl.float16


@triton.constexpr_function
def _choose_factor(FORMAT, TYPE):
    """Return the factor that makes numbers of bits."""
    if TYPE == tl.bfloat16:
        return {"fp8": 2.0**120, "mxfp4": 2.0**126}.get(FORMAT, 2.0**116)
    return {"fp8": 2.0**8, "mxfp4": 2.0**14}.get(FORMAT, 1.0)


@triton.jit
def dequantise(
    codes,
    scales,
    zeros,
    rows,
    begin,
    row_length,
    num_groups,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    INPUTS: tl.constexpr,
    DTYPE: tl.constexpr,
    IS_SCALED: tl.constexpr = True,
):
    """Return weights that are not "plain".

    Conversions are slow, so codes become bits of bfloat16 or float16, two at a time. In the
    lowest eight bits, bfloat16 has whole numbers, denormal or not: one operation takes them out
    of a word, and another one makes them larger, takes a zero away and scales them. In float16,
    codes are the lowest bits of 1024. Floats of few bits are those of floats whose exponents
    have another bias; a factor makes up for it.

    Args:
      scales: of `read_scales`, (OUTPUTS, groups)
      IS_SCALED: weights are multiplied by their scales; without it, sums of them are to be.
      Others: as in `read_tile`.

    Returns:
      (OUTPUTS, INPUTS) DTYPE, times `find_unit`
    """
    TYPE: tl.constexpr = _choose_type(FORMAT, HAS_ZEROS, DTYPE)
    UNIT: tl.constexpr = find_unit(FORMAT, HAS_ZEROS, DTYPE)
    PARTS: tl.constexpr = INPUTS // GROUP if 0 < GROUP and GROUP < INPUTS else 1
    is_short: tl.constexpr = TYPE == tl.bfloat16
    is_int: tl.constexpr = FORMAT == "int4" or FORMAT == "int8"
    # What stands for zero, besides zeros.
    base: tl.constexpr = 0 if FORMAT == "int4" and HAS_ZEROS else 8
    above: tl.constexpr = 128 if FORMAT == "int8" else base
    OFFSET: tl.constexpr = (above if is_short else above + 1024) * UNIT
    # Numbers and scales of the same type are multiplied two at a time, and rounded as by way of
    # float32. Powers of 2 are exact in bfloat16, whose exponents are those of float32.
    is_power: tl.constexpr = FORMAT == "mxfp4" and DTYPE == tl.bfloat16
    is_fast: tl.constexpr = TYPE == DTYPE and (is_power or scales.dtype == DTYPE)
    # Groups of 32 are shorter than the runs of `_read_pieces`.
    is_packed: tl.constexpr = is_short and is_int and GROUP != 32
    IS_PACKED: tl.constexpr = is_packed and (is_fast or not IS_SCALED)
    low, high = _read_pieces(codes, rows, begin, row_length, FORMAT, INPUTS, TYPE)
    LOW: tl.constexpr = _choose_factor(FORMAT, TYPE)
    HIGH: tl.constexpr = LOW / 16 if is_short and FORMAT == "int4" else LOW
    if IS_PACKED:
        groups: tl.constexpr = (rows.shape[0], PARTS, INPUTS // PARTS // 4, 2)
        low, high = tl.reshape(low, groups), tl.reshape(high, groups)
        steps = tl.full((1, 1, 1, 1), 1.0, TYPE)
        if IS_SCALED:
            steps = tl.expand_dims(tl.expand_dims(scales, 2), 3)
        if HAS_ZEROS:
            # Differences are exact, so that they are rounded once, too.
            offsets = read_scales(zeros, rows, begin, num_groups, GROUP, INPUTS)
            offsets = (offsets.to(tl.float32) * -UNIT).to(TYPE)
            offsets = tl.expand_dims(tl.expand_dims(offsets, 2), 3)
            low = _scale(low, tl.full((1, 1, 1, 1), LOW, TYPE), offsets)
            high = _scale(high, tl.full((1, 1, 1, 1), HIGH, TYPE), offsets)
            if IS_SCALED:
                none = tl.full((1, 1, 1, 1), 0.0, TYPE)
                low, high = _scale(low, steps, none), _scale(high, steps, none)
        else:
            low = _scale(low, steps * LOW, steps * -OFFSET)
            high = _scale(high, steps * HIGH, steps * -OFFSET)
        runs: tl.constexpr = (rows.shape[0], INPUTS // 64, 16, 2)
        low, high = tl.reshape(low, runs), tl.reshape(high, runs)
    elif LOW != 1:
        low, high = low * LOW, high * HIGH
    numbers = tl.permute(tl.join(low, high), (0, 1, 4, 2, 3))
    if not IS_PACKED:
        numbers = tl.reshape(numbers, (rows.shape[0], PARTS, INPUTS // PARTS))
        if HAS_ZEROS:
            offsets = read_scales(zeros, rows, begin, num_groups, GROUP, INPUTS)
            offsets = offsets.to(tl.float32) * UNIT + OFFSET
            numbers = numbers - tl.expand_dims(offsets, 2).to(TYPE)
        elif is_int:
            numbers = numbers - OFFSET
        if IS_SCALED:
            factors = tl.expand_dims(make_factors(scales, FORMAT), 2)
            if is_fast:
                numbers = numbers * factors.to(DTYPE)
            else:
                numbers = numbers.to(tl.float32) * factors
    return tl.reshape(numbers, (rows.shape[0], INPUTS)).to(DTYPE)


@triton.jit
def _scale(numbers, factors, offsets):
    """Return numbers * factors + offsets, bfloat16, rounded once."""
    # The compiler would compute one by one.
    return tl.inline_asm_elementwise(
        "fma.rn.bf16x2 $0, $1, $2, $3;",
        "=r,r,r,r",
        [numbers, factors, offsets],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=2,
    )


@triton.jit
def _read_pieces(
    codes,
    rows,
    begin,
    row_length,
    FORMAT: tl.constexpr,
    INPUTS: tl.constexpr,
    TYPE: tl.constexpr,
):
    """Return the first and the second half of each run of 64 inputs, as bits of floats.

    Returns:
      low, high: (OUTPUTS, runs, 16, 2) TYPE
    """
    short: tl.constexpr = TYPE == tl.bfloat16
    if FORMAT == "int4" or FORMAT == "mxfp4":
        words = _read_nibbles(codes, rows, begin, row_length, INPUTS)
        if FORMAT == "mxfp4":
            low, high = _place_e2m1(words, short), _place_e2m1(words >> 4, short)
        elif short:
            low, high = _keep(words, 0x000F000F), _keep(words, 0x00F000F0)
        else:
            low = words & 0x000F000F | 0x64006400
            high = (words >> 4) & 0x000F000F | 0x64006400
    else:
        places = (begin >> 2) + tl.arange(0, INPUTS // 4)
        words = tl.load(codes + rows[:, None] * row_length + places[None, :])
        words = tl.reshape(words, (rows.shape[0], INPUTS // 64, 16))
        IS_SIGNED: tl.constexpr = FORMAT == "fp8"
        low = _take_bytes(words, False, IS_SIGNED)
        high = _take_bytes(words, True, IS_SIGNED)
        if IS_SIGNED:
            # The sign, and the rest behind a part of the exponent, whose bias is 7.
            SHIFT: tl.constexpr = 4 if short else 7
            MASK: tl.constexpr = -0x780F7810 if short else -0x407F4080
            low, high = _keep(low << SHIFT, MASK), _keep(high << SHIFT, MASK)
        elif not short:
            low, high = low | 0x64006400, high | 0x64006400
    return _take_halves(low, TYPE), _take_halves(high, TYPE)


@triton.jit
def _place_e2m1(words, short: tl.constexpr):
    """Place the lowest four bits of halves: a sign, and three bits of which two are exponent."""
    rest = words & 0x00070007
    rest = rest << 6 if short else rest << 9
    return ((words << 12) & -0x7FFF8000) | rest


@triton.jit
def _read_nibbles(codes, rows, begin, row_length, INPUTS: tl.constexpr):
    """Return words in whose halves the lowest eight bits are two codes, in order."""
    places = (begin >> 7 << 4) + tl.arange(0, 16 * ((INPUTS + 127) // 128))
    words = tl.load(codes + rows[:, None] * row_length + places[None, :])
    if INPUTS == 64:
        # A half of a run.
        words = words >> ((begin & 64) >> 3)
        words = tl.reshape(words, (rows.shape[0], 1, 16))
    else:
        words = tl.reshape(words, (rows.shape[0], INPUTS // 128, 16))
        words = tl.permute(tl.join(words, words >> 8), (0, 1, 3, 2))
        words = tl.reshape(words, (rows.shape[0], INPUTS // 64, 16))
    return words


@triton.jit
def _keep(words, MASK: tl.constexpr):
    """Return some bits of words."""
    if IS_INTERPRETED:
        kept = words & MASK
    else:
        # The compiler would take bytes and halves out of words one by one.
        kept = tl.inline_asm_elementwise(
            "and.b32 $0, $1, $2;",
            "=r,r,r",
            [words, MASK],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    return kept


@triton.jit
def _take_bytes(words, IS_ODD: tl.constexpr, IS_SIGNED: tl.constexpr):
    """Return two bytes of each word as whole numbers of 16 bits."""
    if IS_INTERPRETED:
        taken = (words >> 8 if IS_ODD else words) & 0x00FF00FF
        if IS_SIGNED:
            signs = taken & 0x00800080
            taken |= (signs << 9) - (signs << 1)
    else:
        # The place of each byte, from the lowest: 4 is zero, 8 and more repeat a sign.
        even: tl.constexpr = 0xA280 if IS_SIGNED else 0x4240
        odd: tl.constexpr = 0xB391 if IS_SIGNED else 0x4341
        taken = tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, 0, $2;",
            "=r,r,r",
            [words, odd if IS_ODD else even],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    return taken


@triton.jit
def _take_halves(words, DTYPE: tl.constexpr):
    """Return the low and the high 16 bits of each word, side by side, as floats."""
    low, high = words.to(tl.int16), (words >> 16).to(tl.int16)
    return tl.join(low, high).to(DTYPE, bitcast=True)
