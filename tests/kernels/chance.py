"""Sizes and values by chance."""

from __future__ import annotations

from examples import examples
from hypothesis import HealthCheck, settings
import torch
from torch import Tensor

# The examples are the same in every run, so that a failure is not one by chance. The
# fixture is the same for all of them.
by_chance = settings(
    derandomize=True,
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

# FormatCode of native/matrix.h.
FORMATS = {torch.float32: 0, torch.bfloat16: 1}


def make_numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
