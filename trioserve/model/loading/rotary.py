"""Make rotary embeddings a function of the position alone.

Two kinds of scaled embeddings change their frequencies with the longest position in the
batch. A short sequence would then compute other numbers beside long sequences than alone,
and would not match its own earlier keys. vLLM fixes the frequencies once, by the longest
length that the server allows, and so does this module.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel


def freeze_rotary(model: PreTrainedModel, max_model_len: int) -> None:
    """Fix the frequencies of `dynamic` and `longrope` embeddings for good."""
    longest = torch.tensor([[max_model_len - 1]], device=model.device)
    for module in model.modules():
        if _is_changing(getattr(module, "rope_type", None)):
            _freeze(module, longest)


def _is_changing(rope_type: object) -> bool:
    return isinstance(rope_type, str) and (
        "dynamic" in rope_type or rope_type == "longrope"
    )


def _freeze(module: Any, longest: torch.Tensor) -> None:
    # One call with the longest position sets the frequencies for it. After that, a
    # `default` embedding never changes them (dynamic_rope_update in
    # transformers/modeling_rope_utils.py).
    module(torch.zeros(1, device=longest.device), longest)
    module.rope_type = "default"
