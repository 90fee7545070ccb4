"""The largest number of tokens that a model can take."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ....errors import InvalidConfig

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

logger = logging.getLogger(__name__)

# With these kinds of scaling, max_position_embeddings counts the stretched positions
# already; other kinds stretch it by `factor`. As vLLM's _get_and_verify_max_len.
_ROPE_TYPES_ALREADY_STRETCHED = frozenset(
    {"default", "llama3", "longrope", "su", "mrope"}
)


def resolve_max_model_len(config: PreTrainedConfig, wanted: int | None) -> int:
    """Return the largest number of tokens of a sequence.

    Args:
      config: the model's.
      wanted: the option --max-model-len.

    Raises:
      InvalidConfig: the option is missing, or too small or too large for the model.
    """
    num_keys = count_indexed_keys(config)
    if num_keys is None:
        return choose_max_model_len(count_positions(config), wanted)
    if wanted is not None and wanted > num_keys:
        raise InvalidConfig(
            "max_model_len",
            f"{wanted} is more than {num_keys}, the keys that the model's indexer chooses: "
            "only texts up to so many tokens are served",
        )
    logger.info(
        "longest text: %d tokens, because the model's indexer is left out", num_keys
    )
    return choose_max_model_len(num_keys, wanted)


def choose_max_model_len(limit: int | None, wanted: int | None) -> int:
    """Return the largest number of tokens of a sequence; as resolve_max_model_len.

    Args:
      limit: the positions that the model distinguishes; None if unlimited.
    """
    if wanted is not None and wanted < 2:
        raise InvalidConfig(
            "max_model_len", f"must be at least 2, for prompt and output, got {wanted}"
        )
    if limit is None:
        if wanted is None:
            raise InvalidConfig(
                "max_model_len", "must be given: the model's config.json has no limit"
            )
        return wanted
    if limit < 2:
        raise InvalidConfig(
            "max_model_len",
            f"must be at least 2, but max_position_embeddings of the model's config.json "
            f"allows {limit}",
        )
    if wanted is not None and wanted > limit:
        raise InvalidConfig(
            "max_model_len", f"{wanted} is more than the model's own {limit}"
        )
    return wanted or limit


def count_indexed_keys(config: PreTrainedConfig) -> int | None:
    """Return the number of keys that indexers choose; None if all layers see all keys."""
    text_config = config.get_text_config(decoder=True)
    if "indexed_attention" not in (getattr(text_config, "layer_types", None) or ()):
        return None
    limit = count_positions(config)
    num_keys = int(text_config.index_topk)
    return num_keys if limit is None else min(num_keys, limit)


def count_positions(config: PreTrainedConfig) -> int | None:
    """Return the number of positions that a model distinguishes; None if unlimited."""
    text_config = config.get_text_config(decoder=True)
    limit = getattr(text_config, "max_position_embeddings", None)
    # XLNet says -1.
    if limit is None or limit == -1:
        return None
    return _stretch(limit, getattr(text_config, "rope_parameters", None) or {})


def _stretch(limit: int, rope: dict[str, Any]) -> int:
    """Return the positions that a scaled rotary embedding reaches."""
    rope_type = rope.get("rope_type", "default")
    # If layer types have different embeddings, their parameters are nested one level
    # deeper, and rope_type is missing or no text. Those are not scaled beyond
    # max_position_embeddings.
    if not isinstance(rope_type, str) or rope_type in _ROPE_TYPES_ALREADY_STRETCHED:
        return limit
    if rope_type == "yarn":
        limit = rope.get("original_max_position_embeddings") or limit
    return int(limit * float(rope.get("factor") or 1.0))
