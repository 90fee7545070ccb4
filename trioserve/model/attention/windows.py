"""The layers whose queries see a window of the keys alone, and therefore few blocks.

All of them together are one group: it has blocks and tables of its own, and as many keys stay
as the widest window of the group needs. A layer that reads the cache of another belongs to
the group of that one.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def find_window(layers: Sequence[LayerSpec]) -> int:
    """Return the most keys that a query of a windowed layer sees; 0 without such layers."""
    counts = [
        layer.reach.num_keys or 0
        for layer, is_windowed in zip(layers, list_windowed(layers))
        if is_windowed
    ]
    return max(counts, default=0)
