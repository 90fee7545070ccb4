"""Quantise a model's weights before its kernels are compared with its modules.

Both have the same numbers then. Exact weights in 32 layers of random ones give logits that differ by
half of their size, so no tolerance would tell mistakes from rounding.
"""

from __future__ import annotations

from torch import Tensor

from ...kernels.stored import NotStored, join, quantise
from .choice import NotRecognised
from .description import (
    DecoderParts,
    MixtureParts,
    find_mixture,
    list_products,
    make_empty,
)
from .stored_weights import (
    find_stored,
    find_stored_experts,
    store_experts,
    store_linear,
)


def quantise_parts(parts: DecoderParts, format: str) -> None:
    """Quantise the plain weights of a decoder's layers; its modules dequantise them.

    Routers, the gates of shared experts, and weights that the kernels could not read stay.

    Args:
      format: as in `quantise` (stored.py).

    Raises:
      NotRecognised: experts that cannot run with such weights.
    """
    for body in parts.bodies:
        mixture = find_mixture(body)
        kept = None if mixture is None else mixture.shared_gate
        for module in list_products(body):
            if module is kept or find_stored(module) is not None:
                continue
            try:
                stored = quantise(module.weight.detach(), format)
            except NotStored:
                continue
            store_linear(module, stored, parts.dtype)
        if mixture is not None:
            for name in (mixture.first_name, "down_proj"):
                _quantise_experts(mixture, name, format)


def _quantise_experts(mixture: MixtureParts, name: str, format: str) -> None:
    experts = mixture.experts
    if name in find_stored_experts(experts):
        return
    if not hasattr(experts, "is_transposed"):
        raise NotRecognised("its experts cannot be quantised")
    weight: Tensor = getattr(experts, name).detach()
    numbers = weight.transpose(1, 2) if mixture.is_transposed else weight
    # In float32, all of them would take gigabytes.
    stored = join([quantise(each, format) for each in numbers])
    setattr(experts, name, make_empty(weight.shape, weight.dtype, weight.device))
    store_experts(experts, name, stored)
