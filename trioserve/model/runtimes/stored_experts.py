"""Experts whose weights stay in fewer bits than 16, as PyTorch runs them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...kernels.triton.stored import StoredWeights

# The attribute of a module of experts, besides those that transformers gives it.
_STORED = "stored_weights"


def store_experts(experts: nn.Module, name: str, stored: StoredWeights) -> None:
    """Give a module of experts one of its weights, which is dequantised each time.

    This is the oracle of kernels that read such weights, and slow.

    Args:
      experts: a class with transformers' use_experts_implementation. Its weight tells the
        shape, the type and the device; it has no numbers.
      stored: the outputs of all experts follow each other.
    """
    setattr(experts, _STORED, {**find_stored_experts(experts), name: stored})
    setattr(experts, "forward", partial(_run, experts))


def find_stored_experts(experts: nn.Module) -> Mapping[str, StoredWeights]:
    """Return the weights of experts in fewer bits, by name."""
    found: Mapping[str, StoredWeights] = getattr(experts, _STORED, {})
    return found


def release_stored_experts(experts: nn.Module) -> None:
    """Take such weights from experts."""
    if find_stored_experts(experts):
        setattr(experts, _STORED, {})


def _run(experts: Any, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Run experts one after the other; the arguments are those of their class."""
    outputs = torch.zeros_like(states, dtype=torch.float32)
    gate = experts._apply_gate if experts.has_gate else experts.act_fn
    first = "gate_up_proj" if experts.has_gate else "up_proj"
    for expert in chosen.unique().tolist():
        rows, places = torch.where(chosen == expert)
        inner = gate(_multiply(experts, expert, first, states[rows]))
        output = _multiply(experts, expert, "down_proj", inner)
        outputs.index_add_(0, rows, (output * weights[rows, places, None]).float())
    return outputs.to(states.dtype)


def _multiply(experts: Any, expert: int, name: str, given: Tensor) -> Tensor:
    stored = find_stored_experts(experts).get(name)
    if stored is None:
        own = getattr(experts, name)[expert]
        weight = own.T if experts.is_transposed else own
    else:
        count = stored.num_outputs // len(getattr(experts, name))
        weight = stored.take(slice(expert * count, (expert + 1) * count)).restore(
            given.dtype
        )
    bias = getattr(experts, f"{name}_bias")[expert] if experts.has_bias else None
    return linear(given, weight, bias)
