"""Make rotary embeddings a function of the position alone.

Two kinds of scaled embeddings change their frequencies with the longest position in the
batch. A short sequence would then compute other numbers beside long sequences than alone,
and would not match its own earlier keys. vLLM fixes the frequencies once, by the longest
length that the server allows, and so does this module.

    kind      up to the original length   beyond it
    dynamic   its own frequencies         frequencies of the present length
    longrope  the short factors           the long factors

So a server whose longest length is not beyond the original one computes what transformers
does; the log names that length.
"""

from __future__ import annotations

from collections.abc import Iterator
import logging
from typing import Any

import torch
from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


def freeze_rotary(model: PreTrainedModel, max_model_len: int) -> None:
    """Fix the frequencies of `dynamic` and `longrope` embeddings for good."""
    longest = torch.tensor([[max_model_len - 1]], device=model.device)
    lengths = set()
    for module in model.modules():
        for layer_type, rope_type in _list_types(module):
            if _is_changing(rope_type):
                _freeze(module, layer_type, longest)
                lengths.add(_find_original_length(module, layer_type, rope_type))
    if lengths and max_model_len > min(lengths):
        logger.info(
            "rotary embeddings: for texts of %d tokens, used for shorter ones too; "
            "--max-model-len %d keeps the embeddings for short texts",
            max_model_len,
            min(lengths),
        )


def _list_types(module: Any) -> Iterator[tuple[str | None, object]]:
    """Yield the types of a module's embeddings, with the type of their layers, if any."""
    rope_type = getattr(module, "rope_type", None)
    if isinstance(rope_type, dict):
        yield from rope_type.items()
    else:
        yield None, rope_type


def _is_changing(rope_type: object) -> bool:
    return isinstance(rope_type, str) and (
        "dynamic" in rope_type or rope_type == "longrope"
    )


def _find_original_length(
    module: Any, layer_type: str | None, rope_type: object
) -> int:
    """Return the length up to which texts have the frequencies of short ones."""
    if rope_type != "longrope":
        return int(module.original_max_seq_len)
    parameters = module.config.rope_parameters
    if layer_type is not None:
        parameters = parameters[layer_type]
    return int(parameters["original_max_position_embeddings"])


def _freeze(module: Any, layer_type: str | None, longest: torch.Tensor) -> None:
    # One call with the longest position sets the frequencies for it. After that, a
    # `default` embedding never changes them (dynamic_rope_update in
    # transformers/modeling_rope_utils.py).
    numbers = torch.zeros(1, device=longest.device)
    if layer_type is None:
        module(numbers, longest)
        module.rope_type = "default"
    else:
        module(numbers, longest, layer_type)
        module.rope_type = {**module.rope_type, layer_type: "default"}
