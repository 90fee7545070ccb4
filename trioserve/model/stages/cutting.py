"""Build one stage of a model: its layers, and the other modules that it needs.

A stage is a model of the same class, whose other modules are removed before its weights are
read. No weights of another stage are ever read or held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ..loading.pruning import make_pruned_class
from .partition import Partition
from .placeholder_layers import Entrance, Exit, PlaceholderLayer
from .skeleton import Skeleton, has_weights


def make_stage_class(
    model_class: type[PreTrainedModel],
    skeleton: Skeleton,
    partition: Partition,
    cut_weights: Callable[[nn.Module], None] | None = None,
) -> type[PreTrainedModel]:
    """Return a class whose models have one stage's modules and no others.

    Args:
      cut_weights: leaves a part of each weight, if others have the rest.
    """

    def prune(model: Any) -> None:
        _cut(model, skeleton, partition)
        if cut_weights is not None:
            cut_weights(model)

    return make_pruned_class(model_class, prune)


def drop_unused(
    model: PreTrainedModel, skeleton: Skeleton, partition: Partition
) -> None:
    """Remove modules that were needed only to read weights with two names.

    The files may hold an embedding under the name of the head that shares it.
    """
    _keep_only(model, skeleton, _list_used(skeleton, partition))


def find_entrance(
    model: nn.Module, skeleton: Skeleton, partition: Partition
) -> Entrance:
    """Return the layer at which a later stage puts in the received hidden states."""
    entrance = model.get_submodule(f"{skeleton.layers_name}.{partition.begin - 1}")
    assert isinstance(entrance, Entrance)
    return entrance


def _cut(model: Any, skeleton: Skeleton, partition: Partition) -> None:
    _replace_layers(model, skeleton, partition)
    used = _list_used(skeleton, partition)
    # The files hold shared weights once, under any of their names.
    if used & skeleton.tied:
        used |= skeleton.tied
    _keep_only(model, skeleton, used)
    # transformers would warn of all the weights that belong to other stages.
    model._keys_to_ignore_on_load_unexpected = {".*"}


def _replace_layers(model: nn.Module, skeleton: Skeleton, partition: Partition) -> None:
    layers: Any = model.get_submodule(skeleton.layers_name)
    for index, layer in enumerate(layers):
        if not partition.begin <= index < partition.end:
            layer_type = {partition.begin - 1: Entrance, partition.end: Exit}.get(
                index, PlaceholderLayer
            )
            layers[index] = layer_type(layer)


def _list_used(skeleton: Skeleton, partition: Partition) -> set[str]:
    """Return the modules with weights, apart from layers, that a stage runs."""
    used = set(skeleton.before) - {skeleton.embedding}
    if partition.is_first:
        used |= skeleton.unseen | {skeleton.embedding}
    if partition.is_last:
        used |= skeleton.after
    return used


def _keep_only(model: nn.Module, skeleton: Skeleton, used: set[str]) -> None:
    """Remove modules whose weights are not used: the outermost ones if possible."""
    for name, child in list(model.named_modules()):
        parent, _, attribute = name.rpartition(".")
        is_there = _has_submodule(model, name)
        if name and is_there and _is_unused(name, child, skeleton, used):
            setattr(model.get_submodule(parent), attribute, nn.Identity())


def _has_submodule(model: nn.Module, name: str) -> bool:
    """Return whether no module around it was taken away."""
    try:
        model.get_submodule(name)
    except AttributeError:
        return False
    return True


def _is_unused(
    name: str, module: nn.Module, skeleton: Skeleton, used: set[str]
) -> bool:
    if f"{name}.".startswith(f"{skeleton.layers_name}."):
        return False
    owners = {
        f"{name}.{inner}".removesuffix(".")
        for inner, each in module.named_modules()
        if has_weights(each)
    }
    return (
        bool(owners)
        and not owners & used
        and not f"{skeleton.layers_name}.".startswith(f"{name}.")
    )
