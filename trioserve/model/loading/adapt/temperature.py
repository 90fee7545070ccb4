"""Make the temperature of attention a function of the given positions.

Llama 4's layers without rotary embeddings scale queries by their positions. transformers counts
these from the length of its cache, whatever positions a model is given. Here sequences lie side
by side, and there is no such cache. So each of these layers gets a cache that is empty, and tells
the lengths by which the count becomes the given positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def follow_positions(model: nn.Module) -> None:
    """Let layers that scale queries take their positions from the model's arguments."""
    for module in model.modules():
        attention = getattr(module, "self_attn", None)
        if getattr(attention, "attn_temperature_tuning", False):
            module.register_forward_pre_hook(_give_positions, with_kwargs=True)


def _give_positions(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if kwargs.get("cache") is None:
        kwargs = {**kwargs, "cache": _Positions(kwargs["position_ids"][0])}
    return args, kwargs


class _Positions:
    """The part of transformers' cache that such a layer uses.

    Args:
      positions: (num_tokens,) int64
    """

    def __init__(self, positions: Tensor) -> None:
        self._positions = positions

    def get_seq_length(self, layer_idx: int) -> Tensor:
        """Return what the layer adds to 0, 1, 2 ...; (num_tokens,) int64"""
        positions = self._positions
        return positions - torch.arange(len(positions), device=positions.device)

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, **others: object
    ) -> tuple[Tensor, Tensor]:
        return key, value
