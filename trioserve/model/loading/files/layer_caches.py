"""The caches that transformers gives the layers of a model, by its configuration."""

from __future__ import annotations

from collections.abc import Sequence
import sys
from typing import Any

from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import (
    CacheLayerMixin,
    LinearAttentionCacheLayerMixin,
)

# A name in transformers' module of a model -> the name of its layers with states. The first
# that matches is used.
_STATES = {
    "GatedDeltaNet": "Gated DeltaNet",
    "DeltaAttention": "Kimi delta attention",
    "mamba2_chunk_scan": "Mamba-2",
    "mamba_selective_scan": "Mamba-1",
    "Lightning": "lightning attention",
    "ShortConv": "short convolutions",
    "RgLru": "RG-LRU",
    "CCA": "compressed convolutional attention",
}


# The states that can be served: modules of transformers go on from those of earlier tokens.
_SERVED = frozenset(
    {"Gated DeltaNet", "Kimi delta attention", "Mamba-2", "short convolutions"}
)


def find_other_cache(config: PreTrainedConfig, model_class: Any) -> str | None:
    """Return what layers keep that cannot be served, in one sentence.

    Some classes of models can have states, and a configuration without any: dense Granite 4
    has the class of the hybrids. So the layers are counted, and not the class asked.

    Args:
      config: the model's.
      model_class: transformers' class of the model.

    Returns:
      None if they keep keys and values, and states of kinds that are served.
    """
    kind = name_states(model_class)
    if count_stateful_layers(config) and kind not in _SERVED:
        return f"its layers keep states ({kind}) besides keys and values"
    for layer in _list_caches(config):
        # DeepSeek V4's caches are classes of its own, which register themselves.
        if type(layer).__module__ != CacheLayerMixin.__module__:
            return f"its layers keep a cache of their own ({type(layer).__name__})"
    return None


def count_stateful_layers(config: PreTrainedConfig) -> int:
    """Return how many layers keep states."""
    return sum(
        isinstance(layer, LinearAttentionCacheLayerMixin)
        for layer in _list_caches(config)
    )


def _list_caches(config: PreTrainedConfig) -> Sequence[object]:
    try:
        return DynamicCache(config=config).layers
    except Exception:
        # A configuration that this cache does not know. The model may know it.
        return []


def name_states(model_class: Any) -> str:
    """Return the name of the layers with states that a class of models has."""
    names = vars(sys.modules[model_class.__module__])
    for part, kind in _STATES.items():
        if any(part in name for name in names):
            return kind
    return "recurrent layers"
