"""Let attention keep latents in place of keys and values.

transformers' modules of DeepSeek V2 and its descendants keep latents in their own cache, and
expand them to the keys and values of all heads before each call of attention. The paged cache
would keep those: 40,960 numbers a token and layer of DeepSeek V3, in place of 576. Here the call
gets the latents, and the bridge (attention/bridge.py) absorbs the expansion.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...attention.latents import LatentProjection
from ...attention.registered import IMPLEMENTATION
from ...self_check.compare import agree

_NUM_TRIALS = 3


def keep_latents(model: nn.Module) -> None:
    """Let attention modules pass latents on while trioserve's attention runs them."""
    for module in list(model.modules()):
        projection = _find_projection(module)
        if projection is not None:
            _replace(module, projection)


def _find_projection(attention: Any) -> LatentProjection | None:
    """Return the product by which a module expands latents; None if it has none.

    The module's own function expands some latents, for comparison.
    """
    linear: Any = getattr(attention, "kv_b_proj", None)
    if type(linear) is not nn.Linear or linear.bias is not None:
        return None
    if linear._forward_hooks or not hasattr(attention, "expand_kv"):
        return None
    projection = LatentProjection(
        linear, attention.num_heads, attention.qk_nope_head_dim
    )
    weight = linear.weight
    chance = torch.Generator().manual_seed(0)
    latents, shared = (
        torch.randn((1, 1, _NUM_TRIALS, size), generator=chance).to(weight)
        for size in (projection.rank, attention.qk_rope_head_dim)
    )
    with torch.inference_mode():
        keys, values = attention.expand_kv(latents, shared)
        own_keys, own_values = projection.expand(latents[0, 0])
    shared = shared[0].transpose(0, 1).expand(-1, projection.num_heads, -1)
    own_keys = torch.cat((own_keys, shared), dim=-1)
    are_same = _is_same(keys, own_keys) and _is_same(values, own_values)
    return projection if are_same else None


def _is_same(heads: Tensor, own: Tensor) -> bool:
    """Compare (1, num_heads, num_tokens, dim) with (num_tokens, num_heads, dim)."""
    heads = heads[0].transpose(0, 1)
    return heads.shape == own.shape and (own.is_meta or agree(heads, own))


def _replace(attention: Any, projection: LatentProjection) -> None:
    expand = attention.expand_kv

    def expand_nothing(latents: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """(1, 1, num_tokens, size) both; keys and values of one head"""
        if attention.config._attn_implementation != IMPLEMENTATION:
            keys, values = expand(latents, shared)
            return keys, values
        both = torch.cat((latents, shared), dim=-1)
        return both, both[..., : projection.rank]

    attention.kv_b_proj = projection
    attention.expand_kv = expand_nothing
