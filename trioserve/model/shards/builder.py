"""Builds one shard of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ...types.stage_place import Shard
from ..attention.probe import LayerSpec, UnfitLayer
from .choose import choose_cuts
from .cut import cut_model
from .group import TensorGroup
from .plan import find_plan
from .split import split_heads
from .weights import take_parts


class ShardBuilder:
    """Cuts a model, and the weights of its files, for one shard.

    Args:
      whole: the whole model, without memory for its weights.
      layers: its calls of attention; None if they are unknown.
      group: of the model that is built.

    Raises:
      UnfitLayer: the model cannot be split.
      InvalidConfig: it cannot be split into so many shards.
    """

    def __init__(
        self,
        whole: PreTrainedModel,
        layers: tuple[LayerSpec, ...] | None,
        group: TensorGroup,
    ) -> None:
        if layers is None:
            raise UnfitLayer("its heads are not known before its weights are read")
        self.group = group
        self._whole = whole
        self._plan = find_plan(whole, layers)
        self._cuts = choose_cuts(whole, self._plan, group.shard)

    def cut(self, model: nn.Module) -> None:
        """Leave this shard's part of a model whose weights have no numbers yet."""
        cut_model(model, self._plan, self._cuts, self.group)

    def take_parts(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Replace what can be sliced to the weights of files by this shard's parts."""
        return take_parts(tensors, self._cuts, self._whole)


def cut_layers(layers: tuple[LayerSpec, ...], shard: Shard) -> tuple[LayerSpec, ...]:
    """Return calls of attention with the heads that a shard has.

    Raises:
      InvalidConfig: the heads cannot be split into so many shards.
    """
    return tuple(_cut_layer(layer, shard) for layer in layers)


def _cut_layer(layer: LayerSpec, shard: Shard) -> LayerSpec:
    heads = split_heads(layer.num_heads, layer.num_kv_heads, shard)
    return replace(layer, num_heads=len(heads.queries), num_kv_heads=len(heads.keys))
