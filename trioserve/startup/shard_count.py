"""A look at the number of shards before any process is started for them."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import InvalidConfig

# The number of heads of queries, by the names of transformers' configurations.
_NAMES = ("num_attention_heads", "n_head", "n_heads")


def check_shard_count(folder: Path, num_shards: int) -> None:
    """Refuse more shards than a model has heads; shards look at the rest.

    Args:
      folder: of the model, with its config.json.

    Raises:
      InvalidConfig
    """
    num_heads = _read_num_heads(folder)
    if num_heads is not None and num_shards > num_heads:
        raise InvalidConfig(
            "tensor_parallel_size",
            f"{num_shards} processes cannot share {num_heads} heads",
        )


def _read_num_heads(folder: Path) -> int | None:
    """Return the heads of a model; None if a process has to find out."""
    try:
        fields = json.loads((folder / "config.json").read_bytes())
        fields = {**fields, **fields.get("text_config", {})}
        return next((int(fields[name]) for name in _NAMES if name in fields), None)
    # A broken file is refused where it is read for good.
    except (OSError, ValueError, TypeError, AttributeError):
        return None
