"""What stands where a stage has no layer.

A model's own forward pass runs at every stage, because nobody else knows what it does
before its layers: positions, scaled embeddings, masks.

    layers of stages before  |  this stage's layers  |  layers of stages behind
     PlaceholderLayer ... Entrance                                Exit

The last one in front puts in what came from the stage before. The first one behind ends
the pass: what follows belongs to other stages.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

_SIMPLE = (str, int, float, bool, type(None))


class LeftStage(Exception):
    """Raised to end a forward pass behind a stage's last layer.

    Attributes:
      hidden: (1, num_tokens, hidden_width), what that layer gave
    """

    def __init__(self, hidden: Tensor) -> None:
        super().__init__("the layers that follow are another stage's")
        self.hidden = hidden


class PlaceholderLayer(nn.Module):
    """Hands on what it gets, the way a layer would.

    Args:
      layer: whose place it takes. Models look at some of their layers' attributes, such
        as the kind of attention, so those are kept.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        for name, value in vars(layer).items():
            if not name.startswith("_") and isinstance(value, _SIMPLE):
                setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.replace(args[0] if args else kwargs["hidden_states"])

    def replace(self, hidden: Tensor) -> Tensor:
        """Return what to hand on."""
        return hidden


class Entrance(PlaceholderLayer):
    """Hands on what the stage before has sent."""

    _received: Tensor | None = None

    def put(self, hidden: Tensor) -> None:
        """Take what the next forward pass goes on with, (1, num_tokens, hidden_width)."""
        self._received = hidden

    def replace(self, hidden: Tensor) -> Tensor:
        received, self._received = self._received, None
        assert received is not None, "a stage receives before it computes"
        return received


class Exit(PlaceholderLayer):
    """Ends the forward pass."""

    def replace(self, hidden: Tensor) -> Tensor:
        raise LeftStage(hidden)
