"""Vectors of images that are added behind the first layers of a model.

The encoder of such a model has several outputs for each vector of an image. The first stands
in the place of a token. The others are added to the hidden states behind the first layers,
one behind each.

Source: Meng et al. 2024 (DeepStack), section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

# The name of these vectors among the arguments of a step.
ADDED = "added_behind_layers"


class Deepstack:
    """Adds vectors to the outputs of a model's first layers.

    Args:
      layers: transformers' modules, as many as there are vectors for each token.

    Attributes:
      num_layers: the number of these layers.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self.num_layers = len(layers)
        self._added: Tensor | None = None
        for index, layer in enumerate(layers):
            layer.register_forward_hook(partial(self._add, index))

    def fake(self, vectors: Tensor) -> Tensor:
        """Make vectors of a usual size out of the vectors of tokens, for a check.

        Args:
          vectors: (num_tokens, hidden_size)

        Returns:
          (num_layers, num_tokens, hidden_size), the vectors of other tokens
        """
        shifts = range(1, 1 + self.num_layers)
        return torch.stack([vectors.roll(shift, dims=0) for shift in shifts])

    @contextmanager
    def use(self, added: Tensor | None) -> Iterator[None]:
        """Add vectors in the passes inside the block.

        Args:
          added: (num_layers, num_tokens, hidden_size), zeros for tokens without any; None
            if no token has any
        """
        self._added = added
        try:
            yield
        finally:
            self._added = None

    def _add(
        self, index: int, layer: nn.Module, inputs: object, hidden: Tensor
    ) -> Tensor:
        return hidden if self._added is None else hidden + self._added[index]


@contextmanager
def adding(deepstack: Deepstack | None, arguments: dict[str, Tensor]) -> Iterator[None]:
    """Take these vectors out of a step's arguments, and add them inside the block."""
    added = arguments.pop(ADDED, None)
    if deepstack is None:
        assert added is None, "only models with such layers have such vectors"
        yield
        return
    with deepstack.use(added):
        yield
