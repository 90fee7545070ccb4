"""Compare the output of a fast path with its oracle's, by the one table of tolerances."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import shorten_message

# Largest distance from an oracle, as a part of the size of its numbers. Rounding gives 1e-6
# in float32, and 0.005 to 0.05 in bfloat16, where modules round after every operator (with
# random weights 0.083 in Qwen3.5 on AVX512-BF16, where modules are 0.063 and kernels 0.062 from
# float32). A wrong formula, position, window or mask gives 0.1 or more.
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 1e-2}

# In 16 bits, a router chooses other experts where two are nearly equal. A mixture of 24 layers with
# random weights gives 0.067: modules are 0.037 and kernels 0.054 from float32.
_ROUTED = 2

# Quantisation gives 0.02 to 0.07. The formula is the same as without.
_INT8_TOLERANCE = 0.3

# Kernels for CPUs round scales and zeros of quantised weights to float16. In float32 this gives up to
# 0.012 with random weights (0.002 with 16 layers and usual ones).
_ROUNDED_SCALES_TOLERANCE = 3e-2

# Of one product, for a token. torch._scaled_mm gives 0.003, and Triton's interpreter, which cuts
# bits off, 0.01; inputs that are not rounded give 0.026.
_ROUNDED_TOLERANCE = 2e-2

# Both round keys and values to eight bits. A number between two codes may go to one or the other:
# in float16 this gives 0.004 with three layers, and in proportion to the root of their number.
_INT8_CACHE_TOLERANCE = 3e-2

# Operators on single numbers, all in float32, do not add up roundings.
_SINGLE_TOLERANCE = 1e-5


def find_difference(
    expected: Tensor,
    actual: Tensor,
    dtype: torch.dtype | None = None,
    *,
    int8: bool = False,
    rounds_inputs: bool = False,
    rounds_scales: bool = False,
    int8_cache: bool = False,
    routes: bool = False,
    dim: int | None = None,
) -> str | None:
    """Return how outputs differ, in one sentence; None if by rounding alone.

    Args:
      dtype: of the model; None is the oracle's.
      int8: the fast path has weights of eight bits.
      rounds_inputs: both are one product, whose inputs are rounded to FP8.
      rounds_scales: the fast path rounds the scales of quantised weights.
      int8_cache: both have a KV cache of eight bits.
      routes: the model has experts.
      dim: compares each vector of this dimension by itself; None compares all numbers together.
    """
    distance = measure_distance(expected, actual, dim)
    dtype = dtype or expected.dtype
    tolerance = TOLERANCES.get(dtype, 0.0)
    if routes and dtype != torch.float32:
        tolerance *= _ROUTED
    if rounds_scales:
        tolerance = max(tolerance, _ROUNDED_SCALES_TOLERANCE)
    if int8_cache:
        tolerance = max(tolerance, _INT8_CACHE_TOLERANCE)
    if int8:
        tolerance = _INT8_TOLERANCE
    if rounds_inputs:
        tolerance = _ROUNDED_TOLERANCE
    # Not a number must not pass as a small distance.
    if distance <= tolerance:
        return None
    return f"its output would differ by {distance:.2g} of its size"


def agree(expected: Tensor, actual: Tensor) -> bool:
    """Return whether outputs differ by rounding alone."""
    return find_difference(expected, actual) is None


def agree_singly(expected: Tensor, actual: Tensor) -> bool:
    """Return whether operators on single numbers give the same numbers."""
    bound = _SINGLE_TOLERANCE
    return torch.allclose(expected, actual, rtol=bound, atol=bound)


def describe_failure(error: Exception) -> str:
    """Return one sentence about a fast path that raises an error."""
    return f"it fails: {shorten_message(error)}"


def measure_distance(expected: Tensor, actual: Tensor, dim: int | None = None) -> float:
    """Return the largest distance of outputs, as a part of the size of the oracle's."""
    expected, actual = expected.float(), actual.float()
    error = torch.linalg.vector_norm(actual - expected, dim=dim)
    size = torch.linalg.vector_norm(expected, dim=dim)
    return float(torch.where(size > 0, error / size, error).max())
