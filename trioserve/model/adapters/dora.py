"""The output scales of DoRA, which divide trained magnitudes by the norms of changed weights.

Source: Liu et al. 2024 (DoRA), as in peft 0.21, tuners/lora/dora.py.
"""

from __future__ import annotations

from dataclasses import replace

from .config import AdapterProblem
from .description import LowRank
from .part import ModelPart


def divide_magnitude(change: LowRank, name: str, part: ModelPart) -> LowRank:
    """Return a change with the factors of its outputs.

    Args:
      change: its output_scale are the magnitudes.
      name: of its product.

    Raises:
      AdapterProblem: the factors are not finite.
    """
    assert change.output_scale is not None, "it has magnitudes"
    changed = part.layers.read(name).addmm_(change.b, change.a)
    scale = change.output_scale / changed.norm(dim=1)
    if not scale.isfinite().all():
        raise AdapterProblem(f"{name}.lora_magnitude_vector divides by zero")
    return replace(change, output_scale=scale)
