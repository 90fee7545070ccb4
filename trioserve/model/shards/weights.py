"""Read a shard's parts of weights, and nothing else, from the files of a model."""

from __future__ import annotations

from collections.abc import Mapping
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)

from ...kernels.stored import StoredWeights
from ..attention.probe import UnfitLayer
from .cuts import Cut

# They put weights of files together, and a part of each weight makes a part of the result. Other
# operations may move the cut to another axis, or to another place.
_FITTING = (MergeModulelist, Concatenate)


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


class PartialQuantisedWeight(PartialWeight):
    """The part of a quantised weight; see QuantisedWeight in ../loading/dequantise."""

    def keep(self, device: torch.device) -> StoredWeights:
        """Return the part as kernels read it.

        Raises:
          NotStored: they cannot read the weight, or not this part of it.
        """
        return self._cut.take_stored(self._name, self._whole.keep(device))


def take_parts(
    tensors: Mapping[str, Any], cuts: Mapping[str, Cut], whole: PreTrainedModel
) -> dict[str, Any]:
    """Replace the weights of files by their parts, which are read later.

    Args:
      tensors: sliceable sources of tensors, by their names in the files.
      cuts: by the names of the model.
      whole: the whole model, which tells by which names files call its weights.

    Raises:
      UnfitLayer: files hold a weight that is cut in another form than the model.
    """
    transforms = get_model_conversion_mapping(whole)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    weights = whole.state_dict()
    parts = {}
    for name, tensor in tensors.items():
        target, pattern = rename_source_key(
            name, renamings, converters, whole.base_model_prefix, weights
        )
        cut = cuts.get(target)
        if cut is None:
            parts[name] = tensor
            continue
        if any(
            not isinstance(operation, _FITTING)
            for converter in converters
            if pattern in converter.source_patterns
            for operation in converter.operations
        ):
            raise UnfitLayer(f"its files hold {name} in another form than the model")
        kind = PartialQuantisedWeight if hasattr(tensor, "keep") else PartialWeight
        parts[name] = kind(name, cut, tensor)
    return parts
