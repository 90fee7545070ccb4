"""The facts that decide the KV cache of a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ....types.windows import WindowLayers


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The facts that decide the KV cache of a model, or of one of its stages.

    Args:
      kv_bytes_per_token: bytes of keys and values of all layers.
      windows: the layers with windows among them.
      state_bytes: bytes of the states of a sequence in all layers.
    """

    kv_bytes_per_token: int
    windows: WindowLayers | None = None
    state_bytes: int = 0
    max_model_len: int
    device: torch.device
