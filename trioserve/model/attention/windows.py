"""The layers whose queries see a window of the keys alone, and therefore few blocks.

All of them together are one group: it has blocks and tables of its own, and as many keys stay
as the widest window of the group needs. A layer that reads the cache of another belongs to
the group of that one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...types.windows import WindowLayers
from .cache_memory import count_kv_bytes
from .probe import LayerSpec


def list_windowed(layers: Sequence[LayerSpec]) -> list[bool]:
    """Return of each layer whether no query reads its keys after some time."""
    is_windowed = [layer.reach.num_keys is not None for layer in layers]
    for layer, own in zip(layers, list(is_windowed)):
        if layer.shares is not None:
            is_windowed[layer.shares] &= own
    return [
        is_windowed[i if layer.shares is None else layer.shares]
        for i, layer in enumerate(layers)
    ]


def find_windows(
    layers: Sequence[LayerSpec], kv_dtype: torch.dtype
) -> WindowLayers | None:
    """Describe the windowed layers; None if there are none.

    Args:
      kv_dtype: as in count_kv_bytes.
    """
    windowed = [
        layer for layer, has in zip(layers, list_windowed(layers), strict=True) if has
    ]
    if not windowed:
        return None
    return WindowLayers(
        window=max(layer.reach.num_keys or 0 for layer in windowed),
        kv_bytes_per_token=count_kv_bytes(windowed, kv_dtype),
    )
