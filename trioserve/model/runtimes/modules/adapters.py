"""Adapters on transformers' modules: hooks behind products change the rows that have them.

A hook costs a microsecond for each product of a step. It is there only while an adapter that
changes its product is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ....types.adapter import NO_ADAPTER
from ...adapters.description import Changes, LowRank
from ...adapters.products import is_router, split_expert
from ...device.tensors import send_ids
from ...step.layout import StepInputs
from ..loaded import LoadedModel
from .experts import ExpertChanges, change_experts, change_router, get_weight

# Of a step: an adapter's number, and the rows that have it, (num_rows,) int64
_Owned = list[tuple[int, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The rows of the adapters in a step: among its tokens, and among those of the head."""

    tokens: _Owned
    wanted: _Owned


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModuleChanges:
    """The changes of an adapter, by the names of modules."""

    products: Mapping[str, LowRank]
    experts: Mapping[str, ExpertChanges]

    @property
    def names(self) -> set[str]:
        return {*self.products, *self.experts}


class ModuleAdapters:
    """The adapters of a model's modules; a LayerAdapters."""

    def __init__(self, model: LoadedModel) -> None:
        self.shapes: Mapping[str, tuple[int, int]] = model.products
        self._device = model.device
        self._dtype = model.dtype
        self._modules: dict[str, nn.Module] = {
            name: model.model.get_submodule(name)
            for name in {*map(_find_module, model.products)}
        }
        self._head = _get_head(model)
        self._adapters: dict[int, _ModuleChanges] = {}
        self._hooks: dict[str, Any] = {}
        self._step: _Step | None = None

    def read(self, name: str) -> Tensor:
        module: Any = self._modules[_find_module(name)]
        if (expert := split_expert(name)) is not None:
            weight = get_weight(module, *expert[1:])
            return weight.to("cpu", torch.float32, copy=True)
        if type(module) is nn.Linear or is_router(module):
            own: Tensor = module.weight.detach()
            return own.to("cpu", torch.float32, copy=True)
        # Its weight may lie packed, or the other way round.
        chosen = torch.eye(self.shapes[name][1], dtype=self._dtype, device=self._device)
        # Not by a call of the module, which would run the hooks.
        output: Tensor = module.forward(chosen).float()
        if module.bias is not None:
            output -= module.bias.float()
        return output.T.cpu()

    def pack(self, changes: Changes) -> _ModuleChanges:
        products: dict[str, LowRank] = {}
        experts: dict[str, dict[tuple[int, str], LowRank]] = {}
        for name, each in changes.items():
            change = _send(each, self._device)
            if (expert := split_expert(name)) is None:
                products[name] = change
            else:
                experts.setdefault(expert[0], {})[expert[1:]] = change
        return _ModuleChanges(products=products, experts=experts)

    def add(self, number: int, packed: _ModuleChanges) -> None:
        self._adapters[number] = packed
        for name in packed.names - self._hooks.keys():
            module = self._modules[name]
            change: Callable[..., Any] = self._change
            if name in packed.experts:
                change = self._change_experts
            elif is_router(module):
                change = self._change_router
            # Before the hooks that add up the outputs of several processes.
            self._hooks[name] = module.register_forward_hook(
                partial(change, name), prepend=True
            )

    def remove(self, number: int) -> None:
        del self._adapters[number]
        used = {name for each in self._adapters.values() for name in each.names}
        for name in self._hooks.keys() - used:
            self._hooks.pop(name).remove()

    @contextmanager
    def using(self, inputs: StepInputs, tokens: Sequence[int]) -> Iterator[None]:
        """Change the outputs of products inside the block.

        Args:
          tokens: the flat tokens that the head reads.
        """
        if not inputs.adapters:
            yield
            return
        owners = [
            number
            for number, row in zip(inputs.adapters, inputs.rows)
            for _ in range(row.num_tokens)
        ]
        self._step = _Step(
            tokens=self._group(owners),
            wanted=self._group([owners[token] for token in tokens]),
        )
        try:
            yield
        finally:
            self._step = None

    def _group(self, owners: Sequence[int]) -> _Owned:
        """Return the rows of each adapter."""
        rows: dict[int, list[int]] = {}
        for row, number in enumerate(owners):
            rows.setdefault(number, []).append(row)
        rows.pop(NO_ADAPTER, None)
        return [(number, send_ids(own, self._device)) for number, own in rows.items()]

    def _change(
        self, name: str, module: Any, given: tuple[Any, ...], output: Tensor
    ) -> Tensor | None:
        if self._step is None:
            return None
        owned = self._step.wanted if module is self._head else self._step.tokens
        inputs = given[0].flatten(0, -2)  # (num_tokens, num_inputs)
        changed = output.flatten(0, -2)  # (num_tokens, num_outputs)
        for number, rows in owned:
            change = self._adapters[number].products.get(name)
            if change is not None:
                own = _change_rows(change, inputs[rows], changed[rows], module.bias)
                changed = changed.index_copy(0, rows, own.to(output.dtype))
        return changed.view(output.shape)

    def _change_router(
        self, name: str, module: Any, given: tuple[Any, ...], output: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...] | None:
        if self._step is None:
            return None
        inputs = given[0].flatten(0, -2)  # (num_tokens, size)
        for number, rows in self._step.tokens:
            change = self._adapters[number].products.get(name)
            if change is not None:
                own = change_router(module, change, inputs[rows], *given[1:])
                output = tuple(
                    each.index_copy(0, rows, new) for each, new in zip(output, own)
                )
        return output

    def _change_experts(
        self, name: str, module: Any, given: tuple[Any, ...], output: Tensor
    ) -> Tensor | None:
        if self._step is None:
            return None
        for number, rows in self._step.tokens:
            changes = self._adapters[number].experts.get(name)
            if changes is not None:
                own = change_experts(module, changes, *(each[rows] for each in given))
                output = output.index_copy(0, rows, own.to(output.dtype))
        return output


def _find_module(name: str) -> str:
    """Return the name of the module that computes a product."""
    expert = split_expert(name)
    return name if expert is None else expert[0]


def _change_rows(
    change: LowRank, inputs: Tensor, outputs: Tensor, bias: Tensor | None
) -> Tensor:
    """Return the outputs of rows with an adapter, float32.

    Args:
      inputs: (num_rows, num_inputs)
      outputs: (num_rows, num_outputs), of the model's own weight
    """
    added = inputs.float() @ change.a.T @ change.b.T
    if change.output_scale is None:
        return outputs.float() + added
    if bias is None:
        return change.output_scale * (outputs.float() + added)
    return change.output_scale * (outputs.float() - bias + added) + bias


def _send(change: LowRank, device: torch.device) -> LowRank:
    scale = change.output_scale
    return replace(
        change,
        a=change.a.to(device),
        b=change.b.to(device),
        output_scale=None if scale is None else scale.to(device),
    )


def _get_head(model: LoadedModel) -> nn.Module | None:
    """Return the head if it reads the wanted tokens alone."""
    if not model.takes_logits_to_keep:
        return None
    head: nn.Module | None = model.model.get_output_embeddings()
    return head
