"""Quantised weights that stay as they are, because the kernels of their device read them.

A checkpoint has the products of linear modules; of experts, it has one product for each
expert and part of a weight, or one weight of all experts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
import logging
import math
import re
from threading import Lock
from types import EllipsisType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)

from ...kernels.stored import NotStored, StoredWeights, join
from ..runtimes.stored_weights import store_experts, store_linear
from .adapt.latents import keep_latents
from .dequantise.restore import WrongParts

logger = logging.getLogger(__name__)

# Of the weight of all experts: (num_experts, num_outputs, num_inputs), or inputs first.
_EXPERTS_DIMENSIONS = 3


@runtime_checkable
class KeepableWeight(Protocol):
    """A quantised weight of a file, or a shard's part of it."""

    def keep(self, device: torch.device) -> StoredWeights:
        """Return the weight as kernels read it, on its device.

        Raises:
          NotStored: they cannot.
        """

    def __getitem__(self, index: EllipsisType) -> Tensor:
        """Dequantise it."""


class KeptWeights:
    """Keeps the quantised weights of a model while others are read.

    Args:
      whole: the model without weights, which tells by which names files call them.
      device, dtype: of the model.
    """

    def __init__(
        self, whole: PreTrainedModel, device: torch.device, dtype: torch.dtype
    ) -> None:
        # The kernels absorb the numbers of these products into others.
        keep_latents(whole)
        self._whole = whole
        # Other modules, such as those that read images, run with numbers.
        decoder: Any = whole.get_decoder()
        self._products = {*decoder.layers.modules(), whole.get_output_embeddings()}
        self._device = device
        self._dtype = dtype
        self._kept: dict[str, StoredWeights] = {}
        # By reasons.
        self._refused: dict[str, list[str]] = defaultdict(list)
        self._lock = Lock()

    def replace(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Replace weights that can be kept, in place of their slices.

        Args:
          tensors: sliceable sources of tensors, by their names in the files.
        """
        transforms = get_model_conversion_mapping(self._whole)
        renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
        converters = [each for each in transforms if isinstance(each, WeightConverter)]
        merging = {
            pattern: converter
            for converter in converters
            for pattern in converter.source_patterns
        }
        weights = self._whole.state_dict()
        replaced = dict(tensors)
        # By targets, the places of parts, and names.
        merged: dict[str, dict[int, dict[str, Any]]] = {}
        for name, tensor in tensors.items():
            target, pattern = rename_source_key(
                name, renamings, converters, self._whole.base_model_prefix, weights
            )
            if pattern in merging:
                converter = merging[pattern]
                if self._is_of_experts(target) and _only_merges(converter):
                    part = converter.source_patterns.index(pattern)
                    merged.setdefault(target, {}).setdefault(part, {})[name] = tensor
            elif isinstance(tensor, KeepableWeight) and (
                self._is_linear(target) or self._is_of_experts(target)
            ):
                replaced[name] = _KeptWeight(self, target, tensor)
        for target, found in merged.items():
            parts = [_sort_experts(found[part]) for part in sorted(found)]
            if not _are_keepable(parts):
                continue
            for name in [name for part in found.values() for name in part]:
                del replaced[name]
            replaced[target] = _KeptExperts(self, target, parts)
        return replaced

    def _is_linear(self, target: str) -> bool:
        module, _, last = target.rpartition(".")
        try:
            found = self._whole.get_submodule(module)
        except AttributeError:
            return False
        is_product = type(found) is nn.Linear and found in self._products
        # Kernels choose experts by numbers.
        return is_product and last == "weight" and "router" not in module.split(".")

    def _is_of_experts(self, target: str) -> bool:
        """Return whether a weight is that of all experts."""
        try:
            return self._whole.get_parameter(target).dim() == _EXPERTS_DIMENSIONS
        except AttributeError:
            return False

    def keep(self, target: str, weights: Sequence[KeepableWeight]) -> Tensor | None:
        """Keep weights that follow each other.

        Returns:
          a tensor of the shape of the model's weight; None if they cannot be kept

        Raises:
          WrongParts: the file has another size than the model.
        """
        try:
            # transformers reads in several threads. Each would need memory for numbers of 32
            # bits on the device.
            with self._lock:
                stored = join([each.keep(self._device) for each in weights])
        except NotStored as error:
            self._refused[str(error)].append(target)
            return None
        parameter = self._whole.get_parameter(target)
        if math.prod(stored.shape) != parameter.numel():
            raise WrongParts(f"{target} has {stored.shape} numbers in its file")
        self._kept[target] = stored
        empty = torch.empty((), dtype=self._dtype, device=self._device)
        return empty.expand(parameter.shape)

    def put(self, model: PreTrainedModel) -> None:
        """Give the model the weights that were kept."""
        for target, stored in self._kept.items():
            name, _, last = target.rpartition(".")
            module = model.get_submodule(name)
            if isinstance(module, nn.Linear):
                store_linear(module, stored, self._dtype)
            else:
                store_experts(module, last, stored)
        for reason, targets in self._refused.items():
            logger.info(
                "%d weights are dequantised, such as %s, which has %s",
                *(len(targets), min(targets), reason),
            )
        if self._kept:
            formats = sorted({each.format for each in self._kept.values()})
            logger.info("quantised weights stay as they are: %s", ", ".join(formats))


def _only_merges(converter: WeightConverter) -> bool:
    """Return whether a converter puts the products of experts side by side, and no more."""
    return all(
        isinstance(each, MergeModulelist)
        or (isinstance(each, Concatenate) and each.dim == 1)
        for each in converter.operations
    )


def _are_keepable(parts: Sequence[Sequence[Any]]) -> bool:
    """Return whether all parts of all experts are quantised."""
    is_whole = len(set(map(len, parts))) == 1
    return is_whole and all(isinstance(each, KeepableWeight) for each in chain(*parts))


def _sort_experts(weights: Mapping[str, Any]) -> list[Any]:
    """Return the weights of experts in the order of the numbers in their names."""

    def count(name: str) -> list[int]:
        return [int(each) for each in re.findall(r"\d+", name)]

    return [weights[name] for name in sorted(weights, key=count)]


class _KeptWeight:
    """A weight that is kept, for transformers in place of a slice of a file."""

    def __init__(self, kept: KeptWeights, target: str, weight: KeepableWeight) -> None:
        self._kept = kept
        self._target = target
        self._weight = weight

    def __getitem__(self, index: EllipsisType) -> Tensor:
        empty = self._kept.keep(self._target, [self._weight])
        return self._weight[...] if empty is None else empty


class _KeptExperts:
    """A weight of all experts, in the same way.

    Args:
      parts: of the outputs; each has the weights of all experts, in their order.
    """

    def __init__(
        self, kept: KeptWeights, target: str, parts: list[list[KeepableWeight]]
    ) -> None:
        self._kept = kept
        self._target = target
        self._parts = parts

    def __getitem__(self, index: EllipsisType) -> Tensor:
        weights = [part for expert in zip(*self._parts, strict=True) for part in expert]
        empty = self._kept.keep(self._target, weights)
        if empty is not None:
            return empty
        return torch.stack(
            [
                torch.cat([part[...] for part in expert])
                for expert in zip(*self._parts, strict=True)
            ]
        )
