"""The output scales of DoRA, which divide trained magnitudes by the norms of changed weights.

Source: Liu et al. 2024 (DoRA), as in peft 0.21, tuners/lora/dora.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .config import AdapterProblem
from .description import LayerAdapters, LowRank

# Inputs whose weights are read at a time: a weight may lie packed, or quantised.
_INPUTS_AT_ONCE = 512


def find_output_scale(
    change: LowRank, magnitude: Tensor, name: str, layers: LayerAdapters
) -> Tensor:
    """Return the factors of a product's outputs.

    Args:
      magnitude: (num_outputs,)
      name: of the product.

    Raises:
      AdapterProblem: they are not finite.
    """
    num_outputs, num_inputs = layers.shapes[name]
    squares = torch.zeros(num_outputs)
    for begin in range(0, num_inputs, _INPUTS_AT_ONCE):
        end = min(begin + _INPUTS_AT_ONCE, num_inputs)
        chosen = torch.zeros((end - begin, num_inputs))
        chosen[:, begin:end] = torch.eye(end - begin)
        weight = layers.multiply(name, chosen).T  # (num_outputs, end - begin)
        squares += (weight + change.b @ change.a[:, begin:end]).square().sum(dim=1)
    scale = magnitude / squares.sqrt()
    if not scale.isfinite().all():
        raise AdapterProblem(f"{name}.lora_magnitude_vector divides by zero")
    return scale
