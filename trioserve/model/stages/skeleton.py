"""The place where a model can be cut, found by running it without its layers.

    embeddings, positions ...  |  layer 0 ... layer n - 1  |  norm, head
            before                                                after

No list names the modules of all architectures, and transformers' own plans for pipelines
(`base_model_pp_plan`) do not exist for all models. But the list of layers can be found. A
model is built without memory (on torch's `meta` device), and a witness replaces each of
its layers. Each witness must be called once, in order, with exactly the tensor that the
one before it returned. All other models cannot be cut, and are refused here. Of 104
architectures that transformers 5.23 builds by default and that could be served whole, 100
can be cut.
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
from ..loading.load import takes_logits_to_keep
from .placeholder_layers import PlaceholderLayer

# As in probe.py: with one token, its dimension could not be told from others of size 1.
_NUM_TOKENS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """The parts of a model, as far as a stage needs to know them.

    Args:
      layers_name: name of the list of layers.
      layer_costs: number of parameters of each layer.
      head_cost: number of parameters of the output head.
      hidden_width: width of the hidden states between layers.
      embedding_width: width of the embedding; some models project it.
      embedding: name of the module that turns tokens into vectors.
      before: names of modules with weights that are called before the first layer.
      after: the same after the last layer.
      unseen: names of modules with weights that are not called for text: those for
        images.
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
    """Find the parts of a model.

    Args:
      model: the whole model on the `meta` device.

    Raises:
      UnfitLayer: its layers are not called one after the other.
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
    """Raised when layers are not called one after the other."""


class _Witness(PlaceholderLayer):
    """Stands for a layer, and reports its calls."""

    def __init__(self, layer: nn.Module, trace: _Trace, index: int) -> None:
        super().__init__(layer)
        self._index = index
        self._note = trace.note_layer

    def replace(self, hidden: Tensor) -> Tensor:
        return self._note(self._index, hidden)


class _Trace:
    """A forward pass of a model whose layers are replaced by witnesses.

    Attributes:
      entered: the input of the first layer.
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
        """Run the model; returns whether its layers were called one after the other."""
        layers = list(self._layers)
        hooks = [
            module.register_forward_pre_hook(partial(self._note_module, name))
            for name, module in _list_outside(model, self._layers)
        ]
        for index, layer in enumerate(layers):
            self._layers[index] = _Witness(layer, self, index)
        tokens = torch.zeros((1, _NUM_TOKENS), dtype=torch.int64, device="meta")
        # As a step does: without it, Gemma 4 drops tokens in front of its last layers.
        wanted = {"logits_to_keep": tokens[0]} if takes_logits_to_keep(model) else {}
        try:
            with torch.inference_mode():
                model(input_ids=tokens, position_ids=tokens, use_cache=False, **wanted)
        except Exception:
            # The model needs its own layers, so it cannot be cut here.
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
    """Yield modules with weights of their own that are not inside of a layer."""
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
    """Return whether a module has weights of its own, outside of its inner modules."""
    return any(weight is not None for weight in module._parameters.values())


def _count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _find_name(model: nn.Module, wanted: nn.Module) -> str:
    names: dict[nn.Module, str]
    names = {module: name for name, module in model.named_modules()}
    return names[wanted]
