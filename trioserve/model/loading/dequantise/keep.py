"""Quantised weights in the forms that kernels read, without a loss."""

from __future__ import annotations

import torch
from torch import Tensor

from ....kernels.stored import NotStored, StoredWeights, join, store
from .restore import Codes, find_groups

# The zero of codes of four bits without others.
_INT4_ZERO = 8

# Inputs that share an exponent.
_MXFP4_GROUP = 32


def keep_codes(codes: Codes) -> StoredWeights:
    """Keep a weight of whole numbers.

    Raises:
      NotStored
    """
    numbers, zeros, groups = codes.numbers, codes.zeros, codes.groups
    num_inputs, num_groups = len(groups), codes.scales.shape[1]
    # All groups have one size, if the kernels can read them.
    group = num_inputs // num_groups
    order = None
    if not torch.equal(groups, _number(groups, group)):
        order = groups.argsort(stable=True)
        if not torch.equal(groups[order], _number(groups, group)):
            raise NotStored("groups of different sizes")
        # Rows are copied faster than columns.
        numbers = numbers.T[order].T
    if codes.bits == 8:
        # Less 128: the highest bit differs, alone.
        numbers, zeros = (numbers ^ 128).view(torch.int8), zeros - 128
        is_symmetric = not bool(zeros.any())
    else:
        is_symmetric = bool((zeros == _INT4_ZERO).all())
    return store(
        numbers,
        codes.scales,
        format="int8" if codes.bits == 8 else "int4",
        zeros=None if is_symmetric else zeros,
        group=group,
        order=order,
    )


def keep_scaled(
    weight: Tensor,
    scale: Tensor,
    zeros: Tensor | None,
    block: tuple[int, int] | None = None,
    *,
    rounds_inputs: bool = False,
) -> StoredWeights:
    """Keep a weight of eight bits; see restore_scaled.

    Args:
      rounds_inputs: the inputs of its product had eight bits, too, when it was made.

    Raises:
      NotStored
    """
    formats = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}
    format = formats.get(weight.dtype)
    if format is None or (format == "fp8" and zeros is not None):
        raise NotStored(f"scaled numbers of {weight.dtype}")
    scales, group = _spread(scale, weight, block)
    if scales.dtype.itemsize == 1:
        scales = scales.float()
    if zeros is not None:
        zeros, zero_group = _spread(zeros, weight, block)
        if zero_group != group:
            raise NotStored("zeros of other groups than scales")
        zeros = zeros.to(torch.int16)
    return store(
        *(weight, scales),
        format=format,
        zeros=zeros,
        group=group,
        rounds_inputs=rounds_inputs and format == "fp8",
    )


def keep_mxfp4(blocks: Tensor, scales: Tensor) -> StoredWeights:
    """Keep the weights of all experts.

    Args:
      blocks: (num_experts, num_outputs, num_groups, 16) uint8, two neighbouring codes in
        each, the first one in the low bits
      scales: (num_experts, num_outputs, num_groups) uint8

    Returns:
      the outputs of all experts, one after the other

    Raises:
      NotStored
    """
    # One expert after the other: whole numbers take four times the memory of their codes.
    return join([_keep_mxfp4(*each) for each in zip(blocks, scales)])


def _keep_mxfp4(blocks: Tensor, scales: Tensor) -> StoredWeights:
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(1)
    return store(codes, scales, format="mxfp4", group=_MXFP4_GROUP)


def _spread(
    scale: Tensor, weight: Tensor, block: tuple[int, int] | None
) -> tuple[Tensor, int]:
    scale, group = find_groups(scale, weight.shape, block)
    return scale.expand(len(weight), -1), group


def _number(groups: Tensor, group: int) -> Tensor:
    return torch.arange(len(groups), device=groups.device) // group
