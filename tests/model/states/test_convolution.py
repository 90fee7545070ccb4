"""Convolutions of single channels are PyTorch's, whatever their types and shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import conv1d

from trioserve.model.states.convolution import convolving_quickly


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"padding": 3, "groups": 6},
        {"groups": 6},
        {"groups": 2},
        {"groups": 6, "stride": 2},
    ],
)
def test_a_convolution_is_that_of_pytorch(
    dtype: torch.dtype, has_bias: bool, options: dict[str, Any]
) -> None:
    chance = torch.Generator().manual_seed(0)
    x = torch.randn((2, 6, 9), generator=chance).to(dtype)
    weight = torch.randn((6, 6 // options["groups"], 4), generator=chance).to(dtype)
    bias = torch.randn(6, generator=chance).to(dtype) if has_bias else None
    expected = conv1d(
        x.float(), weight.float(), None if bias is None else bias.float(), **options
    )
    with convolving_quickly(x):
        actual = conv1d(x, weight, bias, **options)
    assert actual.dtype == dtype
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(actual.float(), expected, rtol=tolerance, atol=tolerance)
