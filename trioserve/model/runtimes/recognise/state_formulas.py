"""The formulas that layers with states share: convolutions, and norms with gates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..choice import NotRecognised
from ..description import ConvolutionParts

# kMaxTaps of native/states.h.
_MAX_TAPS = 8


def find_convolution(convolution: object) -> ConvolutionParts:
    """Find the parts of a causal convolution of each channel.

    Raises:
      NotRecognised
    """
    if type(convolution) is not nn.Conv1d:
        raise NotRecognised(f"{type(convolution).__name__} is not a convolution")
    taps = convolution.weight.detach()
    if (
        convolution.groups != len(taps)
        or taps.shape[1] != 1
        or convolution.dilation != (1,)
        or not 1 < taps.shape[2] <= _MAX_TAPS
    ):
        raise NotRecognised("a convolution has an unexpected shape")
    bias = convolution.bias
    return ConvolutionParts(
        taps=taps[:, 0].float(), bias=None if bias is None else bias.detach().float()
    )


def find_gated_norm(
    norm: Any, size: int, num_groups: int = 1, *, has_sigmoid: bool = False
) -> tuple[Tensor, bool]:
    """Return the weight of a norm with gates, and whether these weigh its output.

    Args:
      num_groups: parts that are normalised by themselves.
      has_sigmoid: weights are sigmoids of gates, in place of SiLU.

    Raises:
      NotRecognised: it has another formula.
    """
    weight: Tensor = norm.weight.detach().float()
    if weight.shape != (size,):
        raise NotRecognised(f"{type(norm).__name__} normalizes {len(weight)} numbers")
    chance = torch.Generator().manual_seed(0)
    states, gates = torch.randn((2, 4, size), generator=chance).to(weight.device)
    weights = gates.sigmoid() if has_sigmoid else functional.silu(gates)

    def normalize(states: Tensor) -> Tensor:
        groups = states.unflatten(-1, (num_groups, -1))
        shape, epsilon = groups.shape[-1:], norm.variance_epsilon
        return functional.rms_norm(groups, shape, None, epsilon).flatten(-2) * weight

    actual = norm(states, gates).float()
    for is_behind in (True, False):
        if is_behind:
            expected = normalize(states) * weights
        else:
            expected = normalize(states * weights)
        # The weight of a model in bfloat16 is rounded already, and the operands are float32.
        if torch.allclose(actual, expected, rtol=1e-3, atol=1e-4):
            return weight, is_behind
    raise NotRecognised(f"{type(norm).__name__} has another formula")


def check_silu(mixer: Any) -> None:
    """Refuse another activation behind the convolution.

    Raises:
      NotRecognised
    """
    if mixer.activation not in ("silu", "swish"):
        raise NotRecognised(f"{type(mixer).__name__} has no SiLU")
