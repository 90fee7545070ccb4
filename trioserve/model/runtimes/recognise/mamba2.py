"""Mamba-2, found among a decoder's modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..choice import NotRecognised
from ..description import ConvolutionParts, Mamba2Parts
from .products import check_linear, find_products, get_part
from .state_formulas import check_silu, find_convolution, find_gated_norm


def find_mamba2(mixer: Any) -> Mamba2Parts:
    """Find the parts of a recurrence of Mamba-2.

    Raises:
      NotRecognised
    """
    num_heads, num_groups = mixer.num_heads, mixer.n_groups
    key_dim, value_dim = mixer.ssm_state_size, mixer.head_dim
    num_values, num_keys = num_heads * value_dim, num_groups * key_dim
    convolution = find_convolution(mixer.conv1d)
    inputs = find_products(mixer, ("in_proj",))
    num_channels = num_values + 2 * num_keys
    if (
        num_heads % num_groups
        or len(convolution.taps) != num_channels
        or inputs[0].out_features != num_values + num_channels + num_heads
    ):
        raise NotRecognised(f"{type(mixer).__name__} has weights of unexpected shapes")
    # The convolution reads values, keys and queries; the kernels want them turned round.
    values, keys, queries = torch.arange(num_channels).split(
        [num_values, num_keys, num_keys]
    )
    turned = torch.cat((queries, keys, values))
    bias = convolution.bias
    places = torch.arange(inputs[0].out_features)
    gates, channels, steps = places.split([num_values, num_channels, num_heads])
    order = torch.cat((channels[turned], gates, steps))
    norm, has_gate_behind = _find_norm(mixer, num_values)
    least, largest = mixer.time_step_limit
    found = Mamba2Parts(
        inputs=inputs,
        order=order,
        inputs_scale=_find_scale(mixer, order),
        convolution=ConvolutionParts(
            taps=convolution.taps[turned], bias=None if bias is None else bias[turned]
        ),
        num_groups=num_groups,
        num_heads=num_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        decay=-mixer.A_log.detach().float().exp(),
        decay_bias=mixer.dt_bias.detach().float(),
        skip=mixer.D.detach().float(),
        step_limits=(float(least), float(largest)),
        norm=norm,
        has_gate_behind=has_gate_behind,
        num_norm_groups=num_groups,
        output=check_linear(get_part(mixer, "out_proj"), "out_proj"),
    )
    heads = [found.decay, found.decay_bias, found.skip]
    if (
        any(each.shape != (num_heads,) for each in heads)
        or found.output.in_features != num_values
    ):
        raise NotRecognised(f"{type(mixer).__name__} has weights of unexpected shapes")
    check_silu(mixer)
    return found


def _find_norm(mixer: Any, size: int) -> tuple[Tensor | None, bool]:
    """Return the weight of the norm with gates, and whether these are behind it."""
    norm = getattr(mixer, "norm", None)
    if norm is None or isinstance(norm, nn.Identity):
        return None, False
    return find_gated_norm(norm, size, mixer.n_groups)


def _find_scale(mixer: Any, order: Tensor) -> Tensor | None:
    """Return the factors of the outputs of the first product; Falcon-H1 has some."""
    factors = getattr(mixer, "mup_vector", None)
    factor = float(getattr(mixer, "ssm_in_multiplier", 1.0))
    if factors is None and factor == 1.0:
        return None
    if mixer.in_proj.bias is not None:
        raise NotRecognised(f"{type(mixer).__name__} scales inputs with biases")
    scale = torch.full((len(order),), factor)
    if factors is not None:
        scale = scale * factors.detach().float().flatten().cpu()
    return scale[order]
