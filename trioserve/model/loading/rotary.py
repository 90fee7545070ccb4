"""Make rotary embeddings a function of the position alone.

Two kinds of scaled embeddings change their frequencies with the longest position in
the batch. Beside other sequences, a short one would then compute something else than
alone, and its own earlier keys would not match. vLLM decides once, by the longest
length that the server allows, and so do we.
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
    # Seeing the longest position once leaves the frequencies that belong to it, and
    # a `default` embedding never looks at positions again (dynamic_rope_update in
    # transformers/modeling_rope_utils.py).
    module(torch.zeros(1, device=longest.device), longest)
    module.rope_type = "default"
