"""The output scales of DoRA, which divide trained magnitudes by the norms of changed weights.

Source: Liu et al. 2024 (DoRA), as in peft 0.21, tuners/lora/dora.py.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from .config import AdapterProblem
from .description import LowRank
from .part import ModelPart

# Inputs whose weights are read at a time: a weight may lie packed, or quantised.
_INPUTS_AT_ONCE = 512


def divide_magnitude(change: LowRank, name: str, part: ModelPart) -> LowRank:
    """Return a change with the factors of its outputs.

    Args:
      change: its output_scale are the magnitudes.
      name: of its product.

    Raises:
      AdapterProblem: the factors are not finite.
    """
    assert change.output_scale is not None, "it has magnitudes"
    num_outputs, num_inputs = len(change.b), change.a.shape[1]
    squares = torch.zeros(num_outputs)
    for begin in range(0, num_inputs, _INPUTS_AT_ONCE):
        end = min(begin + _INPUTS_AT_ONCE, num_inputs)
        chosen = torch.zeros((end - begin, num_inputs))
        chosen[:, begin:end] = torch.eye(end - begin)
        weight = part.multiply(name, chosen).T  # (num_outputs, end - begin)
        squares += (weight + change.b @ change.a[:, begin:end]).square().sum(dim=1)
    scale = change.output_scale / squares.sqrt()
    if not scale.isfinite().all():
        raise AdapterProblem(f"{name}.lora_magnitude_vector divides by zero")
    return replace(change, output_scale=scale)
