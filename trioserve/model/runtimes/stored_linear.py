"""Products whose weights stay in fewer bits than 16, as PyTorch runs them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...kernels.triton.stored import StoredWeights


class StoredLinear(nn.Linear):
    """A linear module whose weight is dequantised each time.

    It is the oracle of kernels that read such weights, and slow.

    Attributes:
      weight: tells the shape, the type and the device; it has no numbers.
      stored: None when kernels have taken the weights.
    """

    stored: StoredWeights | None

    def forward(self, input: Tensor) -> Tensor:
        assert self.stored is not None, "no kernels have taken the weights"
        return linear(input, self.stored.restore(input.dtype), self.bias)


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


def release_stored(modules: Iterable[nn.Module]) -> None:
    """Take such weights from modules."""
    for module in modules:
        if isinstance(module, StoredLinear):
            module.stored = None
