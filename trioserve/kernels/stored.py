"""Weights in fewer bits than 16, as kernels read them.

    format  a code            scales                        zeros
    int8    int8, plus 128    (num_outputs, num_groups)     (num_outputs, num_groups) or none
    int4    four bits         the same                      the same; 8 without them
    fp8     float8_e4m3fn     the same                      none
    mxfp4   four bits, E2M1   the same, exponents of 2      none
    plain   a number          none                          none

    weight = (code - zero) * scale

A row of codes has the inputs of one output. It is padded to a multiple of 128 inputs, so that
no read of it needs a mask. Codes lie in words of 32 bits, 16 for each run of inputs, so that
threads of a product need no exchange. As 32 halves of 16 bits, in order, these words hold:

    int4, mxfp4    128 inputs: the s-th four bits of half i are input 32 s + i
    int8, fp8      64 inputs: byte s of half i is input 32 s + i

Source of mxfp4: Open Compute Project, Microscaling Formats 1.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
import math

import torch
from torch import Tensor
from torch.nn.functional import pad

FORMATS = ("plain", "int8", "int4", "fp8", "mxfp4")
_BITS = {"int8": 8, "int4": 4, "fp8": 8, "mxfp4": 4}

# Rows are padded to a multiple of it, and larger groups are multiples of it.
_INPUTS = 128
_SMALL_GROUPS = (32, 64)
_HALVES = 32

# Places in a matrix have 32 bits in the kernels.
_MOST_BYTES = 2**31

# Source: Open Compute Project, Microscaling Formats 1.0, table 5.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_LARGEST_FP8 = 448.0

# Outputs that are dequantised at a time by torch.
_RESTORED = 4096

# As on CPUs: runtimes/native/packer.py.
_INT8_GROUP = 64


class NotStored(ValueError):
    """Weights that the kernels cannot read; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredWeights:
    """The weights of a product, in one of the formats but "plain".

    Args:
      codes: (num_outputs, words) int32
      scales: (num_outputs, num_groups) floating; uint8 of mxfp4
      zeros: (num_outputs, num_groups) in the type of the scales, or None
      group: inputs that share a scale; 0 is all
      num_inputs: without the padding.
      order: (num_inputs,) int32, the input that each code of a row belongs to; None if they
        are in order
      rounds_inputs: its product may round its inputs to the same format.
    """

    format: str
    codes: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    group: int
    num_inputs: int
    order: Tensor | None = None
    rounds_inputs: bool = False

    @property
    def num_outputs(self) -> int:
        return len(self.codes)

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_outputs, self.num_inputs

    @property
    def num_codes(self) -> int:
        """Codes of a row, with the padding."""
        return self.codes.shape[1] * 32 // _BITS[self.format]

    @property
    def kind(self) -> tuple[object, ...]:
        """The facts on which kernels depend, besides the sizes."""
        types = [
            None if each is None else each.dtype for each in (self.scales, self.zeros)
        ]
        has_order = self.order is not None
        return self.format, self.group, *types, has_order, self.rounds_inputs

    def to(self, device: torch.device) -> StoredWeights:
        """Return the same weights on a device."""
        return replace(
            self,
            codes=self.codes.to(device),
            scales=self.scales.to(device),
            zeros=None if self.zeros is None else self.zeros.to(device),
            order=None if self.order is None else self.order.to(device),
        )

    def take(self, outputs: Tensor | slice) -> StoredWeights:
        """Return the weights of some outputs.

        Args:
          outputs: (count,) int64, on the same device; or a part of them, without a copy
        """
        return replace(
            self,
            codes=self.codes[outputs],
            scales=self.scales[outputs],
            zeros=None if self.zeros is None else self.zeros[outputs],
        )

    def take_inputs(self, kept: range) -> StoredWeights:
        """Return the weights of some neighbouring inputs.

        If a group is cut, groups are smaller, and several have the same scale.

        Raises:
          NotStored: kernels would not read such groups, or inputs are in another order.
        """
        if self.order is not None:
            raise NotStored("inputs that follow each other in another order")
        scales, zeros, group = self.scales, self.zeros, self.group
        if group:
            group = math.gcd(group, kept.start)
            groups = slice(kept.start // group, -(-kept.stop // group))
            scales = scales.repeat_interleave(self.group // group, 1)[:, groups]
            if zeros is not None:
                zeros = zeros.repeat_interleave(self.group // group, 1)[:, groups]
        return store(
            *(_list_codes(self)[:, kept.start : kept.stop], scales),
            format=self.format,
            zeros=zeros,
            group=group,
            rounds_inputs=self.rounds_inputs,
        )

    def restore(self, dtype: torch.dtype) -> Tensor:
        """Dequantise by torch's operators; returns (num_outputs, num_inputs)."""
        restored = torch.empty(self.shape, dtype=dtype, device=self.codes.device)
        order = slice(None) if self.order is None else self.order.long()
        # In float32, a wide matrix would take gigabytes.
        for begin in range(0, self.num_outputs, _RESTORED):
            rows = slice(begin, begin + _RESTORED)
            restored[rows, order] = _restore(self.take(rows)).to(dtype)
        return restored


def _restore(stored: StoredWeights) -> Tensor:
    """Return (num_outputs, num_inputs) float32, in the order of the codes."""
    scales = stored.scales.float()
    if stored.format == "mxfp4":
        scales = torch.exp2(scales - 127)
    numbers = _read_codes(stored).view(*scales.shape, -1)
    if stored.zeros is not None:
        numbers = numbers - stored.zeros.float()[:, :, None]
    elif stored.format == "int4":
        numbers = numbers - 8
    return (numbers * scales[:, :, None]).flatten(1)[:, : stored.num_inputs]


def _read_codes(stored: StoredWeights) -> Tensor:
    """Return (num_outputs, padded inputs) float32."""
    codes = _list_codes(stored)
    if stored.format == "fp8":
        return codes.view(torch.float8_e4m3fn).float()
    if stored.format != "mxfp4":
        return codes.float()
    values = torch.tensor([*_E2M1, *(-each for each in _E2M1)], device=codes.device)
    return values[codes.long()]


def _list_codes(stored: StoredWeights) -> Tensor:
    """Return (num_outputs, padded inputs), int8 or the bits of a code in uint8, in order."""
    halves = stored.codes.view(torch.int16).view(stored.num_outputs, -1, _HALVES)
    bits = _BITS[stored.format]
    # A shift to the right copies the sign, which the narrower type leaves out.
    parts = [(halves >> shift).to(torch.uint8) for shift in range(0, 16, bits)]
    listed = torch.stack(parts, dim=2).flatten(1)
    if bits == 4:
        return listed & 15
    # The highest bit differs, alone.
    return (listed ^ 128).view(torch.int8) if stored.format == "int8" else listed


def _make_words(codes: Tensor, format: str) -> Tensor:
    """Put codes, (num_outputs, padded inputs), into words; the module says how."""
    if format == "int8":
        codes = codes.view(torch.uint8) ^ 128
    bits = _BITS[format]
    # They may lie in columns.
    runs = codes.contiguous().view(len(codes), -1, 16 // bits, _HALVES)
    first, *others = runs.unbind(2)
    halves = first.to(torch.int16)
    for place, part in enumerate(others, 1):
        halves |= part.to(torch.int16) << (bits * place)
    return halves.flatten(1).view(torch.int32)


def store(
    codes: Tensor,
    scales: Tensor,
    *,
    format: str,
    zeros: Tensor | None = None,
    group: int,
    order: Tensor | None = None,
    rounds_inputs: bool = False,
) -> StoredWeights:
    """Store codes as the kernels read them.

    Args:
      codes: (num_outputs, num_inputs): int8; 0 to 15, uint8; or float8_e4m3fn
      scales: (num_outputs, num_groups)
      zeros: whole numbers of the same shape, up to 256.
      group: inputs that share a scale; 0 is all.
      order, rounds_inputs: as in StoredWeights.

    Raises:
      NotStored
    """
    num_outputs, num_inputs = codes.shape
    if group >= num_inputs:
        group = 0
    if group and group not in _SMALL_GROUPS and group % _INPUTS:
        raise NotStored(f"groups of {group} inputs")
    if scales.shape != (num_outputs, -(-num_inputs // group) if group else 1):
        raise NotStored("scales that fit no groups")
    if codes.dtype == torch.float8_e4m3fn:
        codes = codes.view(torch.uint8)
    codes = pad(codes, (0, -num_inputs % _INPUTS))
    if group:
        missing = -(-codes.shape[1] // group) - scales.shape[1]
        scales = pad(scales, (0, missing))
        zeros = None if zeros is None else pad(zeros, (0, missing))
        # The last group of a row may be cut short by the end of the inputs.
        codes = pad(codes, (0, -codes.shape[1] % group))
    codes = _make_words(codes, format)
    if codes.nbytes >= _MOST_BYTES:
        raise NotStored("more than 2 GiB of codes")
    return StoredWeights(
        format=format,
        codes=codes.contiguous(),
        scales=scales.contiguous(),
        zeros=None if zeros is None else zeros.to(scales.dtype).contiguous(),
        group=group,
        num_inputs=num_inputs,
        order=None if order is None else order.to(torch.int32),
        rounds_inputs=rounds_inputs,
    )


def join(parts: Sequence[StoredWeights]) -> StoredWeights:
    """Join weights that read the same inputs; the outputs follow each other.

    Raises:
      NotStored: they differ in more than their outputs.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    for each in parts[1:]:
        is_alike = each.kind == first.kind and each.num_inputs == first.num_inputs
        if not is_alike or not _are_equal(each.order, first.order):
            raise NotStored("products of one input with different formats")
    zeros = [each.zeros for each in parts if each.zeros is not None]
    return replace(
        first,
        codes=torch.cat([each.codes for each in parts]),
        scales=torch.cat([each.scales for each in parts]),
        zeros=torch.cat(zeros) if zeros else None,
    )


def _are_equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def quantise(weight: Tensor, format: str) -> StoredWeights:
    """Quantise a weight.

    Args:
      weight: (num_outputs, num_inputs)
      format: int8, in groups of 64 inputs; or fp8, with a scale for each output.

    Raises:
      NotStored
    """
    numbers = weight.float()
    if format == "fp8":
        # Inputs may be rounded, too, as vLLM and SGLang do by an option of the same name: only
        # then tensor cores multiply at twice the rate. int8 is there for exact inputs.
        scales = (numbers.abs().amax(1, keepdim=True) / _LARGEST_FP8).clamp_min(1e-12)
        return store(
            *((numbers / scales).to(torch.float8_e4m3fn), scales),
            format=format,
            group=0,
            rounds_inputs=True,
        )
    num_inputs = numbers.shape[1]
    numbers = pad(numbers, (0, -num_inputs % _INT8_GROUP))
    numbers = numbers.view(len(numbers), -1, _INT8_GROUP)
    # Rounded first, so that codes fit to the scales that are kept.
    scales = (numbers.abs().amax(2) / 127).clamp_min(1e-12).bfloat16()
    codes = (numbers / scales.float()[:, :, None]).round().clamp(-127, 127)
    codes = codes.to(torch.int8).flatten(1)[:, :num_inputs]
    if num_inputs <= _INT8_GROUP:
        return store(codes, scales, format=format, group=0)
    return store(codes, scales, format=format, group=_INT8_GROUP)
