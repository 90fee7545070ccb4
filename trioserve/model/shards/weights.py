"""Read a shard's parts of weights, and nothing else, from the files of a model."""

from __future__ import annotations

from collections.abc import Mapping
from types import EllipsisType
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)

from .cuts import Cut


class PartialWeight:
    """The part of one weight, for transformers in place of a slice of a file.

    Args:
      whole: can be sliced to tensors.
    """

    def __init__(self, name: str, cut: Cut, whole: Any) -> None:
        self._name = name
        self._cut = cut
        self._whole = whole

    def __getitem__(self, index: EllipsisType) -> Tensor:
        whole = self._whole
        # A dequantised weight is made as a whole.
        return self._cut.take(
            self._name, whole if hasattr(whole, "get_shape") else whole[...]
        )


def take_parts(
    tensors: Mapping[str, Any], cuts: Mapping[str, Cut], whole: PreTrainedModel
) -> dict[str, Any]:
    """Replace the weights of files by their parts, which are read later.

    Args:
      tensors: what can be sliced to tensors, by its name in the files.
      cuts: by the names of the model.
      whole: the whole model, which tells by which names files call its weights.
    """
    transforms = get_model_conversion_mapping(whole)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    weights = whole.state_dict()
    parts = {}
    for name, tensor in tensors.items():
        target, _ = rename_source_key(
            name, renamings, converters, whole.base_model_prefix, weights
        )
        cut = cuts.get(target)
        parts[name] = tensor if cut is None else PartialWeight(name, cut, tensor)
    return parts
