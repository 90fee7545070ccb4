"""Placeholders for the layers that a stage does not have.

The model's own forward pass runs at every stage, because only its code contains the
steps before the layers: positions, scaled embeddings, masks.

    layers of stages before  |  this stage's layers  |  layers of stages behind
     PlaceholderLayer ... Entrance                                Exit

The last placeholder in front puts in the hidden states from the stage before. The first
placeholder behind ends the pass, because the rest belongs to other stages.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

_SIMPLE = (str, int, float, bool, type(None))


class LeftStage(Exception):
    """Raised to end a forward pass after the last layer of a stage.

    Attributes:
      hidden: (1, num_tokens, hidden_width), the output of that layer
    """

    def __init__(self, hidden: Tensor) -> None:
        super().__init__("the layers that follow are another stage's")
        self.hidden = hidden


class PlaceholderLayer(nn.Module):
    """Returns its input in place of the hidden states that a layer would return.

    Args:
      layer: the layer that it replaces. Models read some attributes of their layers, such
        as the kind of attention, so these are copied.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        for name, value in vars(layer).items():
            if not name.startswith("_") and isinstance(value, _SIMPLE):
                setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.replace(args[0] if args else kwargs["hidden_states"])

    def replace(self, hidden: Tensor) -> Tensor:
        """Return the output for an input."""
        return hidden


class Entrance(PlaceholderLayer):
    """Returns the hidden states that the stage before has sent."""

    _received: Tensor | None = None

    def put(self, hidden: Tensor) -> None:
        """Set the output of the next forward pass, (1, num_tokens, hidden_width)."""
        self._received = hidden

    def replace(self, hidden: Tensor) -> Tensor:
        received, self._received = self._received, None
        assert received is not None, "a stage receives before it computes"
        return received


class Exit(PlaceholderLayer):
    """Ends the forward pass."""

    def replace(self, hidden: Tensor) -> Tensor:
        raise LeftStage(hidden)
