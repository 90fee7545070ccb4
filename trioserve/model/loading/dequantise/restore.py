"""The arithmetic of quantised weights: the parts of one weight become a matrix.

All functions that restore return (outputs, inputs) float32.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import torch
from torch import Tensor

from .packing import WHOLE_BITS, WORD_BITS, unpack

# AutoAWQ packs eight columns in this order, for its kernels. Source: AWQ_PACK_ORDER in
# awq/modules/linear/gemm.py of AutoAWQ 0.2.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
AWQ_BITS = 4


class Nested(NamedTuple):
    """The scales of scales.

    Attributes:
      absmax: (blocks,) float32
      quant_map: (256,) the meaning of each byte
    """

    absmax: Tensor
    quant_map: Tensor


class Codes(NamedTuple):
    """A weight as whole numbers: (number - zero of its group) * scale of its group.

    Attributes:
      numbers: (outputs, inputs) uint8 from 0 to 2 ** bits - 1
      bits: of a number.
      zeros: (outputs, groups) int32
      scales: (outputs, groups)
      groups: (inputs,) int64, the group of each input
    """

    numbers: Tensor
    bits: int
    zeros: Tensor
    scales: Tensor
    groups: Tensor

    def restore(self) -> Tensor:
        """Dequantise the weight."""
        numbers = self.numbers - self.zeros[:, self.groups]
        return (numbers * self.scales.float()[:, self.groups]).contiguous()


class WrongParts(ValueError):
    """The parts of a weight do not fit together."""


def read_gptq(
    qweight: Tensor,
    qzeros: Tensor,
    scales: Tensor,
    g_idx: Tensor | None,
    *,
    bits: int,
    zero_offset: int,
) -> Codes:
    """Read a weight of GPTQ.

    Source: dequantize_weight in gptqmodel/nn_modules/qlinear/torch.py of GPTQModel; Frantar
    et al. 2023 (GPTQ).

    Args:
      qweight: (inputs / 32 * bits, outputs) int32
      qzeros: (groups, outputs / 32 * bits) int32
      scales: (groups, outputs)
      g_idx: (inputs,) the group of each input; None if groups are neighbours of one length.
      zero_offset: is added to the zeros: 1 in the first version of the format.
    """
    numbers = unpack(qweight, bits, 0)
    zeros = unpack(qzeros, bits, 1).int() + zero_offset
    num_inputs, num_groups = len(numbers), len(scales)
    if zeros.shape != scales.shape or numbers.shape[1] != scales.shape[1]:
        raise WrongParts("scales and zeros have other sizes than the weight")
    if g_idx is None:
        groups = _number_groups(num_inputs, num_groups, scales.device)
    elif g_idx.shape != (num_inputs,) or g_idx.min() < 0 or g_idx.max() >= num_groups:
        raise WrongParts("g_idx names groups that are not there")
    else:
        groups = g_idx.long()
    return Codes(numbers.T, bits, zeros.T, scales.T, groups)


def read_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Codes:
    """Read a weight of AWQ, in the version called GEMM.

    Source: dequantize_gemm in awq/utils/packing_utils.py of AutoAWQ 0.2; Lin et al. 2024
    (AWQ).

    Args:
      qweight: (inputs, outputs / 8) int32
      qzeros: (groups, outputs / 8) int32
      scales: (groups, outputs)
    """
    numbers, zeros = _unpack_awq(qweight), _unpack_awq(qzeros).int()
    if zeros.shape != scales.shape or numbers.shape[1] != scales.shape[1]:
        raise WrongParts("scales and zeros have other sizes than the weight")
    groups = _number_groups(len(numbers), len(scales), scales.device)
    return Codes(numbers.T, AWQ_BITS, zeros.T, scales.T, groups)


def read_packed(
    weight_packed: Tensor,
    weight_scale: Tensor,
    weight_shape: Tensor,
    weight_zero_point: Tensor | None,
    weight_g_idx: Tensor | None,
) -> Codes:
    """Read a weight of compressed-tensors' format pack-quantized.

    Source: compressors/pack_quantized of compressed-tensors 0.20.

    Args:
      weight_packed: (outputs, inputs / 32 * bits) int32
      weight_scale: (outputs, groups)
      weight_shape: (2,) outputs and inputs
      weight_zero_point: (outputs / 32 * bits, groups) int32
      weight_g_idx: (inputs,) the group of each input; -1 if groups are neighbours.
    """
    num_outputs, num_inputs = map(int, weight_shape)
    bits = _find_bits(weight_packed.shape[1], num_inputs)
    numbers = unpack(weight_packed, bits, 1)[:, :num_inputs]
    if len(numbers) != num_outputs:
        raise WrongParts("weight_shape differs from the size of weight_packed")
    if weight_g_idx is None or bool((weight_g_idx < 0).any()):
        groups = _number_groups(num_inputs, weight_scale.shape[1], weight_scale.device)
    else:
        groups = weight_g_idx.long()
    if weight_zero_point is None:
        # Numbers with a sign are stored above half of their range.
        zeros = torch.full_like(weight_scale, 1 << (bits - 1), dtype=torch.int32)
    else:
        zeros = unpack(weight_zero_point, bits, 0)[:num_outputs].int()
    return Codes(numbers, bits, zeros, weight_scale, groups)


def restore_scaled(
    weight: Tensor,
    scale: Tensor,
    zeros: Tensor | None,
    block: tuple[int, int] | None = None,
) -> Tensor:
    """Dequantise a weight of eight bits, float8 or int8.

    Args:
      weight: (outputs, inputs)
      scale: one number, (outputs,), (outputs, 1), or one for each block of (outputs, inputs)
      zeros: like scale.
      block: rows and columns of a block; None if all blocks are equally large.
    """
    numbers = weight.float()
    if zeros is not None:
        numbers -= _spread(zeros.float(), weight.shape, block)
    return numbers * _spread(scale.float(), weight.shape, block)


def restore_4_bits(
    weight: Tensor,
    absmax: Tensor,
    quant_map: Tensor,
    state: Tensor,
    nested: Nested | None,
) -> Tensor:
    """Dequantise a weight of bitsandbytes in four bits, NF4 or FP4.

    Source: QuantState.from_dict and dequantize_4bit in bitsandbytes/functional.py of
    bitsandbytes 0.50; Dettmers et al. 2023 (QLoRA).

    Args:
      weight: (outputs * inputs / 2, 1) uint8; the high half of a byte is the first number.
      absmax: (blocks,) float32; uint8 if the scales are quantised, too
      quant_map: (16,) the meaning of each number
      state: the bytes of JSON with the shape and the sizes of blocks.
      nested: the scales of the scales.
    """
    settings = json.loads(bytes(state.tolist()))
    scales = absmax.float()
    if nested is not None:
        blocks = nested.absmax.float()
        outer = blocks.repeat_interleave(settings["nested_blocksize"])[: len(absmax)]
        scales = nested.quant_map.float()[absmax.long()] * outer
        scales += settings["nested_offset"]
    packed = weight.flatten()
    numbers = torch.stack((packed >> 4, packed & 15), dim=1).flatten()
    spread = scales.repeat_interleave(settings["blocksize"])[: len(numbers)]
    return (quant_map.float()[numbers.long()] * spread).view(settings["shape"])


def restore_8_bits(weight: Tensor, scales: Tensor) -> Tensor:
    """Dequantise a weight of bitsandbytes in eight bits.

    Source: Dettmers et al. 2022 (LLM.int8()), equation 4.

    Args:
      weight: (outputs, inputs) int8
      scales: (outputs,) the largest absolute number of each row.
    """
    return weight.float() * (scales.float()[:, None] / 127)


def _spread(scale: Tensor, shape: torch.Size, block: tuple[int, int] | None) -> Tensor:
    """Return scales in a shape that fits a weight's."""
    scale, group = find_groups(scale, shape, block)
    if group == shape[1]:
        return scale
    return scale.repeat_interleave(group, 1).narrow(1, 0, shape[1])


def find_groups(
    scale: Tensor, shape: torch.Size, block: tuple[int, int] | None
) -> tuple[Tensor, int]:
    """Return the scales of each output, and the number of inputs that have one.

    Args:
      scale, block: as in `restore_scaled`.
      shape: of the weight.

    Returns:
      (outputs, groups); or (1, groups) if all outputs have the same
    """
    if scale.numel() == 1:
        return scale.reshape(1, 1), shape[1]
    if scale.ndim == 1:
        scale = scale[:, None]
    sizes = []
    for dim in (0, 1):
        count = scale.shape[dim]
        size = block[dim] if block and count != shape[dim] else shape[dim] // count
        size = shape[dim] if count == 1 else size
        # The last block may be smaller.
        if count != -(-shape[dim] // max(1, size)):
            raise WrongParts("its scales fit no blocks of the weight")
        sizes.append(size)
    if len(scale) > 1:
        scale = scale.repeat_interleave(sizes[0], 0).narrow(0, 0, shape[0])
    return scale, sizes[1]


def _unpack_awq(words: Tensor) -> Tensor:
    shape = len(words), -1, len(_AWQ_ORDER)
    numbers = unpack(words, AWQ_BITS, 1).reshape(shape)
    order = torch.tensor(_AWQ_ORDER, device=words.device).argsort()
    return numbers.index_select(2, order).flatten(1)


def _number_groups(num_inputs: int, num_groups: int, device: torch.device) -> Tensor:
    if num_inputs % num_groups:
        raise WrongParts(
            f"{num_inputs} inputs do not make {num_groups} groups of one length"
        )
    return torch.arange(num_inputs, device=device) // (num_inputs // num_groups)


def _find_bits(num_words: int, num_inputs: int) -> int:
    for bits in WHOLE_BITS:
        if -(-num_inputs * bits // WORD_BITS) == num_words:
            return bits
    raise WrongParts("its numbers have neither 2, 4 nor 8 bits")
