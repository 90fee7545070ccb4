"""Where a model can be cut: found by running it without its layers.

    embeddings, positions ...  |  layer 0 ... layer n - 1  |  norm, head
            before                                                after

What modules are called in a hundred configurations, nobody has written down, and
transformers' own plans for pipelines (`base_model_pp_plan`) are not there for all models.
But which list of modules the layers are can be seen: a model is built without memory (on
torch's `meta` device), a witness stands in for each of its layers, and each must be called
once, in order, with exactly the tensor that the one before it returned. What is not so
cannot be cut, and is refused here. Of 104 architectures that transformers 5.23 builds by
default and that could be served whole, 100 can be cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention.probe import UnfitLayer
from .placeholder_layers import PlaceholderLayer

# As in probe.py: one token would not tell tokens from what there is one of.
_NUM_TOKENS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """What must be known of a model to build one stage of it.

    Args:
      layers_name: of the module list.
      layer_costs: parameters of each layer.
      head_cost: parameters of the output head.
      hidden_width: of what layers hand on.
      embedding_width: of what the embedding gives; some models project it.
      embedding: name of the module that turns tokens into vectors.
      before: names of modules with weights that are called before the first layer.
      after: the same behind the last one.
      unseen: names of modules with weights that text alone does not reach: those that
        see images.
      tied: names of modules that share their weights.
    """

    layers_name: str
    layer_costs: tuple[int, ...]
    head_cost: int
    hidden_width: int
    embedding_width: int
    embedding: str
    before: frozenset[str]
    after: frozenset[str]
    unseen: frozenset[str]
    tied: frozenset[str]


def find_skeleton(model: PreTrainedModel) -> Skeleton:
    """Find out where a model can be cut.

    Args:
      model: the whole model on the `meta` device.

    Raises:
      UnfitLayer: its layers are called otherwise, or not seen.
    """
    for name, layers in _list_candidates(model):
        trace = _Trace(layers)
        if trace.run(model):
            return _describe(model, name, layers, trace)
    raise UnfitLayer(
        "its layers are not called one after the other, each with the hidden states of "
        "the one before"
    )


def _list_candidates(model: PreTrainedModel) -> Iterator[tuple[str, nn.ModuleList]]:
    num_layers = model.config.get_text_config(decoder=True).num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            yield name, module


class _Interrupted(Exception):
    """Raised when layers are called otherwise than one after the other."""


class _Witness(PlaceholderLayer):
    """Notes that it is called, and with what."""

    def __init__(self, layer: nn.Module, trace: _Trace, index: int) -> None:
        super().__init__(layer)
        self._index = index
        self._note = trace.note_layer

    def replace(self, hidden: Tensor) -> Tensor:
        return self._note(self._index, hidden)


class _Trace:
    """A forward pass of a model with witnesses in the place of its layers.

    Attributes:
      entered: what came to the first layer.
      before, after: as in Skeleton.
    """

    def __init__(self, layers: nn.ModuleList) -> None:
        self.entered: Tensor | None = None
        self.before: set[str] = set()
        self.after: set[str] = set()
        self._layers = layers
        self._handed_on: Tensor | None = None
        self._num_called = 0

    def run(self, model: PreTrainedModel) -> bool:
        """Run the model; returns whether its layers were called as they must be."""
        layers = list(self._layers)
        hooks = [
            module.register_forward_pre_hook(partial(self._note_module, name))
            for name, module in _list_outside(model, self._layers)
        ]
        for index, layer in enumerate(layers):
            self._layers[index] = _Witness(layer, self, index)
        tokens = torch.zeros((1, _NUM_TOKENS), dtype=torch.int64, device="meta")
        try:
            with torch.inference_mode():
                model(input_ids=tokens, position_ids=tokens, use_cache=False)
        except Exception:
            # Whatever a model trips over when its layers are not its own: then this is
            # not how it can be cut.
            return False
        finally:
            for index, layer in enumerate(layers):
                self._layers[index] = layer
            for hook in hooks:
                hook.remove()
        return self._num_called == len(layers)

    def note_layer(self, index: int, hidden: Tensor) -> Tensor:
        if index != self._num_called:
            raise _Interrupted("out of order")
        if not isinstance(hidden, Tensor) or hidden.shape[:2] != (1, _NUM_TOKENS):
            raise _Interrupted("not the hidden states of a step")
        if index and hidden is not self._handed_on:
            raise _Interrupted("something is done between layers")
        if index == 0:
            self.entered = hidden
        self._num_called += 1
        self._handed_on = torch.empty_like(hidden)
        return self._handed_on

    def _note_module(self, name: str, module: nn.Module, args: object) -> None:
        if self._num_called == 0:
            self.before.add(name)
        elif self._num_called == len(self._layers):
            self.after.add(name)
        else:
            raise _Interrupted(f"{name} is called between layers")


def _list_outside(
    model: nn.Module, layers: nn.ModuleList
) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules with weights of their own that belong to no layer."""
    inside = set(layers.modules())
    for name, module in model.named_modules():
        if module not in inside and has_weights(module):
            yield name, module


def _describe(
    model: PreTrainedModel, name: str, layers: nn.ModuleList, trace: _Trace
) -> Skeleton:
    assert trace.entered is not None, "the first layer was called"
    outside = {name for name, _ in _list_outside(model, layers)}
    embedding: Any = model.get_input_embeddings()
    head = model.get_output_embeddings()
    tied: dict[str, str] = model.all_tied_weights_keys
    return Skeleton(
        layers_name=name,
        layer_costs=tuple(map(_count_parameters, layers)),
        head_cost=0 if head is None else _count_parameters(head),
        hidden_width=trace.entered.shape[-1],
        embedding_width=embedding.weight.shape[1],
        embedding=_find_name(model, embedding),
        before=frozenset(trace.before),
        after=frozenset(trace.after),
        unseen=frozenset(outside - trace.before - trace.after),
        tied=frozenset(key.rpartition(".")[0] for pair in tied.items() for key in pair),
    )


def has_weights(module: nn.Module) -> bool:
    """Whether a module has weights of its own, besides those of modules inside it."""
    return any(weight is not None for weight in module._parameters.values())


def _count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _find_name(model: nn.Module, wanted: nn.Module) -> str:
    names: dict[nn.Module, str]
    names = {module: name for name, module in model.named_modules()}
    return names[wanted]
