"""Quantised weights that stay as they are on a GPU, because its kernels read them."""

from __future__ import annotations

from collections.abc import Mapping
import logging
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)

from ...kernels.triton.stored import NotStored, StoredWeights
from ..runtimes.stored_linear import StoredLinear
from .dequantise import QuantisedWeight

logger = logging.getLogger(__name__)


class KeptWeights:
    """Keeps the quantised weights of a model's linear modules while others are read.

    Args:
      whole: the model without weights, which tells by which names files call them.
      device, dtype: of the model.
    """

    def __init__(
        self, whole: PreTrainedModel, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._whole = whole
        self._device = device
        self._dtype = dtype
        self._kept: dict[str, StoredWeights] = {}

    def replace(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Replace weights that can be kept, in place of their slices.

        Args:
          tensors: sliceable sources of tensors, by their names in the files.
        """
        transforms = get_model_conversion_mapping(self._whole)
        renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
        converters = [each for each in transforms if isinstance(each, WeightConverter)]
        patterns = {each for one in converters for each in one.source_patterns}
        weights = self._whole.state_dict()
        replaced = {}
        for name, tensor in tensors.items():
            replaced[name] = tensor
            if isinstance(tensor, QuantisedWeight):
                target, pattern = rename_source_key(
                    name, renamings, converters, self._whole.base_model_prefix, weights
                )
                if pattern not in patterns and self._is_linear(target):
                    replaced[name] = _KeptWeight(self, target, tensor)
        return replaced

    def _is_linear(self, target: str) -> bool:
        module, _, last = target.rpartition(".")
        try:
            found = self._whole.get_submodule(module)
        except AttributeError:
            return False
        return last == "weight" and type(found) is nn.Linear

    def keep(self, target: str, weight: QuantisedWeight) -> Tensor:
        """Keep a weight; returns a tensor of its shape, or its numbers."""
        try:
            stored = weight.keep(self._device)
        except NotStored as error:
            logger.info("%s is dequantised: it has %s", target, error)
            return weight[...]
        self._kept[target] = stored
        empty = torch.empty((), dtype=self._dtype, device=self._device)
        return empty.expand(stored.shape)

    def put(self, model: PreTrainedModel) -> None:
        """Give the model the weights that were kept."""
        for target, stored in self._kept.items():
            name = target.removesuffix(".weight")
            module = model.get_submodule(name)
            assert isinstance(module, nn.Linear), "the model without weights had one"
            model.set_submodule(name, StoredLinear(module, stored, self._dtype))
        formats = sorted({each.format for each in self._kept.values()})
        logger.info("quantised weights stay as they are: %s", ", ".join(formats))


class _KeptWeight:
    """A weight that is kept, for transformers in place of a slice of a file."""

    def __init__(self, kept: KeptWeights, target: str, weight: QuantisedWeight) -> None:
        self._kept = kept
        self._target = target
        self._weight = weight

    def __getitem__(self, index: EllipsisType) -> Tensor:
        return self._kept.keep(self._target, self._weight)
