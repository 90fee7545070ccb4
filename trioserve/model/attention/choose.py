"""The attention backends of this project, and the choice among them.

A new backend is one file in this folder and one row in a table here.
"""

from __future__ import annotations

from typing import Protocol

import torch

from ..slots import SlotTables
from .backend import EncoderBackend, PagedBackend, PagedModel
from .flat import FlatAttention
from .gather import GatherAttention
from .probe import LayerSpec, UnfitLayer


class PagedBackendType(Protocol):
    """A class of paged backends."""

    def supports(self, model: PagedModel) -> bool:
        """Whether it can run these layers on this device."""

    def __call__(self, model: PagedModel, tables: SlotTables) -> PagedBackend:
        """Make one, and allocate the KV cache."""


class EncoderBackendType(Protocol):
    """A class of encoder backends."""

    def supports(self, layers: tuple[LayerSpec, ...]) -> bool:
        """Whether it can run these layers."""

    def __call__(self, device: torch.device) -> EncoderBackend: ...


# The first that supports a model on its device is used.
_PAGED_BACKENDS: tuple[PagedBackendType, ...] = (GatherAttention,)
_ENCODER_BACKENDS: tuple[EncoderBackendType, ...] = (FlatAttention,)


def choose_paged_backend(model: PagedModel, tables: SlotTables) -> PagedBackend:
    """Make the fastest backend for a decoder; it allocates the KV cache.

    Args:
      tables: the blocks of each slot, which the backend reads in every step.
    """
    backend = next(each for each in _PAGED_BACKENDS if each.supports(model))
    return backend(model, tables)


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
