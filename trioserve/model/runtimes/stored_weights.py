"""Products whose weights stay in fewer bits than 16, as PyTorch runs them.

Their weights are dequantised each time. They are the oracle of kernels that read such weights, and
slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...kernels.restore import restore
from ...kernels.stored import StoredWeights

# The attribute of a module of experts, besides those that transformers gives it.
_STORED = "stored_weights"


class StoredLinear(nn.Linear):
    """A linear module whose weight is dequantised each time.

    Attributes:
      weight: tells the shape, the type and the device; it has no numbers.
      stored: None when kernels have taken the weights.
    """

    stored: StoredWeights | None

    def forward(self, input: Tensor) -> Tensor:
        assert self.stored is not None, "no kernels have taken the weights"
        return linear(input, restore(self.stored, input.dtype), self.bias)


def store_linear(module: nn.Linear, stored: StoredWeights, dtype: torch.dtype) -> None:
    """Make a linear module a StoredLinear, with the same bias.

    It stays the same object, because others know it: they add up the outputs of shards.

    Args:
      stored: on its device, in the shape of its weight.
      dtype: of inputs and outputs.
    """
    module.__class__ = StoredLinear
    assert isinstance(module, StoredLinear), "it has been told"
    empty = torch.empty((), dtype=dtype, device=stored.codes.device)
    module.weight = nn.Parameter(empty.expand(stored.shape), requires_grad=False)
    module.stored = stored


def find_stored(module: nn.Linear) -> StoredWeights | None:
    """Return the weights of a product in fewer bits; None if they are numbers."""
    return module.stored if isinstance(module, StoredLinear) else None


def store_experts(experts: nn.Module, name: str, stored: StoredWeights) -> None:
    """Give a module of experts one of its weights.

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


def release_stored(module: nn.Module, name: str) -> None:
    """Take a weight in fewer bits from a product, or from experts, that may have it."""
    if isinstance(module, StoredLinear):
        module.stored = None
    own = find_stored_experts(module)
    if name in own:
        setattr(module, _STORED, {key: own[key] for key in own.keys() - {name}})


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
        plain = getattr(experts, name)[expert]
        weight = plain.T if experts.is_transposed else plain
    else:
        count = stored.num_outputs // len(getattr(experts, name))
        own = stored.take(slice(expert * count, (expert + 1) * count))
        weight = restore(own, given.dtype)
    bias = getattr(experts, f"{name}_bias")[expert] if experts.has_bias else None
    return linear(given, weight, bias)
