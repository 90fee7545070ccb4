"""The comparison of fast paths with their oracles lets rounding pass, and nothing else."""

from __future__ import annotations

import pytest
import torch

from trioserve.model.self_check.compare import find_difference


@pytest.mark.parametrize(
    ("dtype", "routes", "passes"),
    [
        (torch.bfloat16, False, False),
        (torch.bfloat16, True, True),
        (torch.float32, True, False),
    ],
)
def test_in_16_bits_routers_may_choose_other_experts(
    dtype: torch.dtype, routes: bool, passes: bool
) -> None:
    expected = torch.ones(4)
    found = find_difference(expected, 1.15 * expected, dtype, routes=routes)
    assert (found is None) == passes
