"""Reads weights in fewer bits than 16: a tile of them becomes numbers of the model's type.

stored.py tells how the formats lie in memory. All of them are read by operations on bits and
by float32, so the same code runs on all GPUs: some have no instructions for eight-bit floats.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Inputs whose four-bit codes lie in the same bytes: half of them in the low bits.
RUN = tl.constexpr(64)


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
      scales, zeros: (num_outputs, num_groups), of that matrix; zeros only if HAS_ZEROS
      rows: (OUTPUTS,), of the matrix; all of them are there
      begin: the first input, a multiple of INPUTS.
      num_inputs: of a row, for the format "plain" alone: other rows are padded.
      FORMAT: one of stored.FORMATS.
      GROUP: inputs that share a scale; 0 is all.
      INPUTS: 64 or 128.
      DTYPE: of the weights, also of "plain" ones.

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
        OUTPUTS: tl.constexpr = rows.shape[0]
        PARTS: tl.constexpr = INPUTS // GROUP if 0 < GROUP and GROUP < INPUTS else 1
        numbers = _read_codes(codes, rows, begin, row_length, FORMAT, INPUTS)
        numbers = tl.reshape(numbers, (OUTPUTS, PARTS, INPUTS // PARTS))
        first = 0 if GROUP == 0 else begin // GROUP
        groups = first + tl.arange(0, PARTS)
        places = rows[:, None] * num_groups + groups[None, :]
        if HAS_ZEROS:
            offsets = tl.load(zeros + places).to(tl.float32)
            if FORMAT == "int4":
                offsets += 8388608.0
            numbers = numbers - tl.expand_dims(offsets, 2)
        elif FORMAT == "int4":
            numbers = numbers - 8388616.0
        factors = _read_scales(tl.load(scales + places), FORMAT)
        numbers = numbers * tl.expand_dims(factors, 2)
        weights = tl.reshape(numbers, (OUTPUTS, INPUTS))
    return weights.to(DTYPE)


@triton.jit
def _read_codes(
    codes, rows, begin, row_length, FORMAT: tl.constexpr, INPUTS: tl.constexpr
):
    """Return codes as numbers, (OUTPUTS, INPUTS) float32.

    Codes of int4 are 2 ** 23 too large: as bits of such a number, they need no conversion.
    Floats of few bits are bits of a float16 whose exponent has another meaning; the scales
    make up for it.
    """
    if FORMAT == "int4" or FORMAT == "mxfp4":
        places = begin // 2 + tl.arange(0, INPUTS // 2)
        pairs = tl.load(codes + rows[:, None] * row_length + places[None, :])
        pairs = pairs.to(tl.int32)
        pairs = tl.reshape(pairs, (rows.shape[0], INPUTS // RUN, RUN // 2))
        bits = tl.permute(tl.join(pairs & 15, pairs >> 4), (0, 1, 3, 2))
        bits = tl.reshape(bits, (rows.shape[0], INPUTS))
        if FORMAT == "int4":
            numbers = (bits | 0x4B000000).to(tl.float32, bitcast=True)
        else:
            bits = ((bits & 8) << 12) | ((bits & 7) << 9)
            numbers = bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        places = begin + tl.arange(0, INPUTS)
        held = tl.load(codes + rows[:, None] * row_length + places[None, :])
        if FORMAT == "fp8":
            # The sign fills two bits, of which one is cleared.
            bits = ((held.to(tl.int16) << 8) >> 1) & -16385
            numbers = bits.to(tl.float16, bitcast=True).to(tl.float32)
        else:
            numbers = held.to(tl.float32)
    return numbers


@triton.jit
def _read_scales(scales, FORMAT: tl.constexpr):
    """Return the factors of what _read_codes returns, float32."""
    if FORMAT == "mxfp4":
        # An exponent, with a bias of 127. That of codes is 15 in place of 1.
        bits = scales.to(tl.int32) << 23
        # 2 ** -127 is not a normal number.
        bits = tl.where(bits == 0, 0x400000, bits)
        factors = bits.to(tl.float32, bitcast=True) * 16384.0
    elif FORMAT == "fp8":
        # The bias of exponents is 15 in place of 7.
        factors = scales.to(tl.float32) * 256.0
    else:
        factors = scales.to(tl.float32)
    return factors
