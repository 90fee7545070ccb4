"""The attention backends of this project, and the choice among them.

A new backend is one file in this folder and one row in a table here.
"""

from __future__ import annotations

import logging
from typing import Protocol

import torch

from ...errors import InvalidConfig
from ..step.slots import SlotTables
from .backend import EncoderBackend, PagedBackend, PagedModel
from .flat import FlatAttention
from .gather import GatherAttention
from .paged_triton import TritonAttention
from .paged_varlen import VarlenAttention
from .probe import LayerSpec, UnfitLayer
from .self_check import find_disagreement

logger = logging.getLogger(__name__)


class PagedBackendType(Protocol):
    """A class of paged backends."""

    def find_obstacle(self, model: PagedModel) -> str | None:
        """Return why it cannot run these layers on this device; None if it can."""

    def __call__(self, model: PagedModel, tables: SlotTables) -> PagedBackend:
        """Make one, and allocate the KV cache."""


class EncoderBackendType(Protocol):
    """A class of encoder backends."""

    def supports(self, layers: tuple[LayerSpec, ...]) -> bool:
        """Return whether it can run these layers."""

    def __call__(self, device: torch.device) -> EncoderBackend: ...


# The names that --attention-backend has, the fastest first. gather runs everywhere. Whether
# varlen or triton is faster has not been measured on a GPU; few have blocks that varlen takes.
_PAGED_BACKENDS: dict[str, PagedBackendType] = {
    "varlen": VarlenAttention,
    "triton": TritonAttention,
    "gather": GatherAttention,
}
# The first that supports a model is used.
_ENCODER_BACKENDS: tuple[EncoderBackendType, ...] = (FlatAttention,)


def choose_paged_backend(
    model: PagedModel, tables: SlotTables, wanted: str = "auto"
) -> PagedBackend:
    """Make the fastest backend for a decoder; it allocates the KV cache. Log the choice.

    Args:
      tables: the blocks of each slot, which the backend reads in every step.
      wanted: auto, or the name of a backend.

    Raises:
      InvalidConfig: the wanted backend cannot run this model here.
    """
    reasons: list[str] = []
    names: tuple[str, ...] = (wanted,)
    if not model.layers:
        # All of them keep states alone, and nobody calls the backend.
        names = ("gather",)
    elif wanted == "auto":
        # Elsewhere, Triton's interpreter may run its kernels, but only if they are wanted.
        names = (*_PAGED_BACKENDS,) if model.device.type == "cuda" else ("gather",)
    for name in names:
        backend = _PAGED_BACKENDS[name]
        obstacle = backend.find_obstacle(model)
        if obstacle is None and model.device.type == "cuda":
            obstacle = find_disagreement(backend, model)
        if obstacle is None:
            why = f" ({'; '.join(reasons)})" if reasons else ""
            logger.info("attention: %s%s", name, why)
            return backend(model, tables)
        reasons.append(f"not {name}: {obstacle}")
    raise InvalidConfig("attention_backend", f"{wanted} cannot be used: {obstacle}")


def choose_encoder_backend(
    layers: tuple[LayerSpec, ...], device: torch.device
) -> EncoderBackend:
    """Make the fastest backend for an encoder.

    Raises:
      UnfitLayer: none of them supports these layers.
    """
    for backend in _ENCODER_BACKENDS:
        if backend.supports(layers):
            return backend(device)
    raise UnfitLayer("no attention backend supports its layers")
