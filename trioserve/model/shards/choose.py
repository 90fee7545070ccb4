"""One shard of a model: the part that it has of each weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ...types.stage_place import WHOLE_LAYERS, Shard
from ..attention.probe import LayerSpec, UnfitLayer
from .cut import cut_model
from .cuts import Cut
from .group import TensorGroup
from .plan import Split, SplitPlan, find_plan
from .split import HeadSplit, split_evenly, split_heads
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

    def find_cuts(self, products: Iterable[str]) -> dict[str, Cut]:
        """Return the cuts of the weights of products, as if all had their outputs first.

        The weights of all experts are there by their own names.
        """
        found = {
            name: cut
            for name, cut in self._cuts.items()
            if not name.endswith((".weight", ".bias"))
        }
        for name in products:
            cut = self._cuts.get(f"{name}.weight")
            if cut is not None:
                assert cut.axis is not None, "the weight of a product is cut"
                is_transposed = _is_transposed(self._whole.get_submodule(name))
                axis = -3 - cut.axis if is_transposed else cut.axis
                found[name] = replace(cut, axis=axis)
        return found

    def take_parts(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Replace sliceable weights of files by this shard's parts."""
        return take_parts(tensors, self._cuts, self._whole)


def cut_layers(layers: tuple[LayerSpec, ...], shard: Shard) -> tuple[LayerSpec, ...]:
    """Return calls of attention with the heads that a shard has.

    Raises:
      UnfitLayer: the heads share what they read.
      InvalidConfig: the heads cannot be split into so many shards.
    """
    return tuple(_cut_layer(layer, shard) for layer in layers)


def _cut_layer(layer: LayerSpec, shard: Shard) -> LayerSpec:
    if layer.values_in_keys and shard != WHOLE_LAYERS:
        raise UnfitLayer("all its heads share a latent, which cannot be split")
    heads = split_heads(layer.num_heads, layer.num_kv_heads, shard)
    return replace(layer, num_heads=len(heads.queries), num_kv_heads=len(heads.keys))


def choose_cuts(whole: nn.Module, plan: SplitPlan, shard: Shard) -> dict[str, Cut]:
    """Return the part of each weight that is cut, by its name.

    Args:
      whole: the whole model, which needs no memory for its weights.

    Raises:
      UnfitLayer: a product does not have the shape that its attention asks for.
      InvalidConfig: there are more shards than heads or columns.
    """
    modules = dict(whole.named_modules())
    cuts: dict[str, Cut] = {}
    for split in plan.splits:
        cuts.update(_cut(modules, split, shard))
    kept = split_evenly(plan.vocab_size, shard)
    for name in (plan.embedding, plan.head):
        cuts[f"{name}.weight"] = Cut(axis=-2, kept=kept, size=plan.vocab_size)
    return cuts


def _cut(
    modules: dict[str, Any], split: Split, shard: Shard
) -> Iterator[tuple[str, Cut]]:
    module = modules.get(split.name)
    if split.style == "sum":
        return
    if module is None:
        name, _, attribute = split.name.rpartition(".")
        yield split.name, _cut_experts(getattr(modules[name], attribute), split, shard)
        return
    is_transposed = _is_transposed(module)
    if split.style == "rows":
        axis = -2 if is_transposed else -1
        size = module.weight.shape[axis]
        kept = _choose_rows(split, size, shard)
        yield f"{split.name}.weight", Cut(axis=axis, kept=kept, size=size)
        if module.bias is not None:
            # The sum has it once.
            yield f"{split.name}.bias", Cut(is_kept=shard.is_first)
        return
    axis = -1 if is_transposed else -2
    num_parts = {"packed columns": 2, "packed heads": 3}.get(split.style, 1)
    size = module.weight.shape[axis] // num_parts
    place: Any = {
        "kept": _choose_columns(split, size, shard),
        "size": size,
        "num_parts": num_parts,
    }
    yield f"{split.name}.weight", Cut(axis=axis, **place)
    if module.bias is not None:
        yield f"{split.name}.bias", Cut(axis=-1, **place)


def _is_transposed(module: nn.Module) -> bool:
    """Return whether a product's weight is (inputs, outputs), as in GPT-2."""
    return type(module).__name__ == "Conv1D"


def _cut_experts(weight: object, split: Split, shard: Shard) -> Cut:
    """Return the cut of a weight of all experts, (num_experts, outputs, inputs)."""
    if not isinstance(weight, nn.Parameter) or weight.dim() != 3:
        raise UnfitLayer(f"{split.name} is not a weight of all experts")
    if split.style == "packed columns":
        size = weight.shape[-2] // 2
        return Cut(axis=-2, kept=split_evenly(size, shard), size=size, num_parts=2)
    axis = -1 if split.style == "rows" else -2
    size = weight.shape[axis]
    return Cut(axis=axis, kept=split_evenly(size, shard), size=size)


def _choose_rows(split: Split, num_inputs: int, shard: Shard) -> range:
    layer = split.attention
    if layer is None:
        return split_evenly(num_inputs, shard)
    if num_inputs != layer.num_heads * layer.value_dim:
        raise UnfitLayer(f"{split.name} reads something else than heads")
    return _scale(_split_heads(layer, shard).queries, layer.value_dim)


def _choose_columns(split: Split, size: int, shard: Shard) -> range:
    layer = split.attention
    if layer is None:
        return split_evenly(size, shard)
    heads = _split_heads(layer, shard)
    if size == layer.num_heads * layer.key_dim:
        return _scale(heads.queries, layer.key_dim)
    if layer.num_heads == layer.num_kv_heads and size % layer.num_heads == 0:
        # Values; or queries, keys and values of each head, side by side.
        return _scale(heads.queries, size // layer.num_heads)
    for width in (layer.key_dim, layer.value_dim):
        if size == layer.num_kv_heads * width:
            return _scale(heads.keys, width)
    raise UnfitLayer(f"{split.name} computes something else than heads")


def _split_heads(layer: LayerSpec, shard: Shard) -> HeadSplit:
    return split_heads(layer.num_heads, layer.num_kv_heads, shard)


def _scale(heads: range, width: int) -> range:
    return range(heads.start * width, heads.stop * width)
