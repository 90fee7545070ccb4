"""Leave out the indexers of sparse attention, which choose all keys of shorter texts.

DeepSeek V3.2, GLM-5 and others let a small indexer choose `index_topk` keys for each query. Up to
so many tokens it chooses all of them, and such a model is one with full attention. Longer texts
are refused (files/positions.py), because keys of the indexer are not kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...attention.registered import IMPLEMENTATION


def leave_out_indexers(model: nn.Module) -> None:
    """Let attention modules use no indexer while trioserve's attention runs them."""
    for module in model.modules():
        if hasattr(module, "indexer") and hasattr(module, "config"):
            module.register_forward_pre_hook(_give_mask, with_kwargs=True)
            if module.indexer is not None:
                _replace(module)


def _replace(attention: Any) -> None:
    choose = attention.indexer.forward

    def choose_all(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if attention.config._attn_implementation != IMPLEMENTATION:
            chosen: Tensor = choose(hidden_states, *args, **kwargs)
            return chosen
        # An empty choice: the attention function passes over it.
        return hidden_states.new_empty(0, dtype=torch.int32)

    attention.indexer.forward = choose_all


def _give_mask(
    attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    # The module takes a part of its mask for the indexer. No mask is built here.
    if kwargs.get("attention_mask") is None:
        kwargs = {**kwargs, "attention_mask": torch.empty(1, 1, 1, 1)}
    return args, kwargs
