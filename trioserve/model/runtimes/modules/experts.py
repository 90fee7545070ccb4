"""Experts and their routers of transformers' modules, for the rows of an adapter."""

from __future__ import annotations

from collections.abc import Mapping
import copy
from typing import Any

import torch
from torch import Tensor

from ...adapters.description import LowRank
from ...adapters.products import list_weights

# The changes of some products, by the places of their experts and the names of weights.
ExpertChanges = Mapping[tuple[int, str], LowRank]


def get_weight(experts: Any, expert: int, name: str) -> Tensor:
    """Return the weight of one expert, (num_outputs, num_inputs)."""
    weight: Tensor = getattr(experts, name)[expert].detach()
    return weight.T if experts.is_transposed else weight


def change_experts(
    experts: Any,
    changes: ExpertChanges,
    inputs: Tensor,
    chosen: Tensor,
    weights: Tensor,
) -> Tensor:
    """Compute the experts of rows that have the same adapter.

    Args:
      experts: a class with transformers' use_experts_implementation.
      inputs: (num_rows, size)
      chosen, weights: (num_rows, num_chosen), of each row's experts

    Returns:
      (num_rows, size) float32

    Source: the steps of grouped_mm_experts_forward, transformers/integrations/moe.py.
    """
    first, second = list_weights(experts)
    outputs = torch.zeros_like(inputs, dtype=torch.float32)
    for expert in chosen.unique().tolist():
        rows, places = torch.where(chosen == expert)
        inner = _multiply(experts, expert, first, changes, inputs[rows])
        gate = experts._apply_gate if experts.has_gate else experts.act_fn
        output = _multiply(experts, expert, second, changes, gate(inner))
        # Transformers 5.17 does not know it.
        if getattr(experts, "has_post_expert_norm", False):
            output = experts.post_expert_norm(output)
        outputs.index_add_(0, rows, (output * weights[rows, places, None]).float())
    return outputs


def change_router(
    router: Any, change: LowRank, inputs: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    """Choose the experts of rows that have the same adapter.

    Args:
      router: its weight is (num_experts, size).
      inputs: (num_rows, size)
      others: more arguments of the router.

    Returns:
      the router's output: (num_rows, num_experts) scores, and (num_rows, num_chosen) weights and
      places of experts
    """
    changed = router.weight.float() + change.b @ change.a
    if change.output_scale is not None:
        changed = change.output_scale[:, None] * changed
    own = copy.copy(router)
    own._parameters = router._parameters | {"weight": changed.to(router.weight.dtype)}
    # Not by a call of the module, which would run the hooks.
    output: tuple[Tensor, ...] = own.forward(inputs, *others)
    return output


def _multiply(
    experts: Any, expert: int, name: str, changes: ExpertChanges, inputs: Tensor
) -> Tensor:
    product = inputs @ get_weight(experts, expert, name).T
    change = changes.get((expert, name))
    if change is not None:
        added = inputs.float() @ change.a.T @ change.b.T
        product = (product.float() + added).to(inputs.dtype)
    if experts.has_bias:
        product = product + getattr(experts, f"{name}_bias")[expert]
    return product
