"""Whether two ways to run a model give the same."""

from __future__ import annotations

import torch
from torch import Tensor

# Largest error, as a part of the length of the states. Wrong positions, windows or masks
# change states by tenths; 16-bit rounding was seen to stay below a twentieth.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}


def agree(found: Tensor, expected: Tensor) -> bool:
    """Whether two results differ by rounding alone."""
    return measure_error(found, expected) <= _TOLERANCE[expected.dtype]


def measure_error(found: Tensor, expected: Tensor) -> float:
    """Return the error of a result as a part of the length of the expected one."""
    error = (found.float() - expected.float()).norm()
    length = expected.float().norm()
    return float(error / length) if length else float(error)
