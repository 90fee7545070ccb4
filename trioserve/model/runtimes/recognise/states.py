"""Layers that keep a state in place of keys and values, found among a decoder's modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..choice import NotRecognised
from ..description import (
    ConvolutionParts,
    DeltaParts,
    Mamba2Parts,
    ShortConvParts,
    StateParts,
)
from .products import check_linear, find_products, get_part

# kMaxTaps of native/states.h.
_MAX_TAPS = 8


def find_state(layer: nn.Module) -> StateParts | None:
    """Find the parts of a layer's state; None if it has none.

    Raises:
      NotRecognised
    """
    for name, find in _FINDERS.items():
        mixer: Any = getattr(layer, name, None)
        if mixer is not None:
            return find(mixer)
    return None


def _find_delta(mixer: Any) -> DeltaParts:
    num_keys, num_values = mixer.num_k_heads, mixer.num_v_heads
    key_dim, value_dim = mixer.head_k_dim, mixer.head_v_dim
    inputs, order = _find_delta_inputs(mixer)
    found = DeltaParts(
        inputs=inputs,
        order=order,
        convolution=_find_convolution(mixer.conv1d),
        num_key_heads=num_keys,
        num_value_heads=num_values,
        key_dim=key_dim,
        value_dim=value_dim,
        decay=-mixer.A_log.detach().float().exp(),
        decay_bias=mixer.dt_bias.detach().float(),
        norm=_find_gated_norm(get_part(mixer, "norm"), value_dim),
        output=check_linear(get_part(mixer, "out_proj"), "out_proj"),
    )
    num_channels = 2 * num_keys * key_dim + num_values * value_dim
    num_inputs = sum(product.out_features for product in inputs)
    if (
        num_values % num_keys
        or len(found.convolution.taps) != num_channels
        or found.decay.shape != (num_values,)
        or found.decay_bias.shape != (num_values,)
        or num_inputs != num_channels + num_values * (value_dim + 2)
        or found.output.in_features != num_values * value_dim
    ):
        raise NotRecognised(f"{type(mixer).__name__} has weights of unexpected shapes")
    _check_silu(mixer)
    return found


def _find_delta_inputs(mixer: Any) -> tuple[tuple[nn.Linear, ...], Tensor | None]:
    """Return the products, and the order of their outputs."""
    inputs = find_products(
        mixer,
        ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
        ("in_proj_qkvz", "in_proj_ba"),
    )
    if len(inputs) == 4:
        return inputs, None
    # Each head of keys has its query, its key, the values and gates of the heads that it
    # serves, and behind all of them their rates and decays.
    num_heads, group = mixer.num_k_heads, mixer.num_v_heads // mixer.num_k_heads
    values = group * mixer.head_v_dim
    sizes = [mixer.head_k_dim, mixer.head_k_dim, values, values]
    first, second = (
        torch.arange(each.out_features).view(num_heads, -1) for each in inputs
    )
    parts = [*first.split(sizes, dim=1), *second.split([group, group], dim=1)]
    offset = inputs[0].out_features
    places = [each + (offset if i >= 4 else 0) for i, each in enumerate(parts)]
    return inputs, torch.cat([each.flatten() for each in places])


def _find_short_conv(mixer: Any) -> ShortConvParts:
    found = ShortConvParts(
        inputs=find_products(mixer, ("in_proj",)),
        convolution=_find_convolution(mixer.conv),
        output=check_linear(get_part(mixer, "out_proj"), "out_proj"),
    )
    size = len(found.convolution.taps)
    if found.inputs[0].out_features != 3 * size or found.output.in_features != size:
        raise NotRecognised(f"{type(mixer).__name__} has weights of unexpected shapes")
    return found


def _find_mamba2(mixer: Any) -> Mamba2Parts:
    num_heads, num_groups = mixer.num_heads, mixer.n_groups
    key_dim, value_dim = mixer.ssm_state_size, mixer.head_dim
    num_values, num_keys = num_heads * value_dim, num_groups * key_dim
    convolution = _find_convolution(mixer.conv1d)
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
    order = torch.cat((queries, keys, values))
    bias = convolution.bias
    places = torch.arange(inputs[0].out_features)
    gates, channels, steps = places.split([num_values, num_channels, num_heads])
    norm = getattr(mixer, "norm", None)
    least, largest = mixer.time_step_limit
    found = Mamba2Parts(
        inputs=inputs,
        order=torch.cat((channels[order], gates, steps)),
        convolution=ConvolutionParts(
            taps=convolution.taps[order], bias=None if bias is None else bias[order]
        ),
        num_groups=num_groups,
        num_heads=num_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        decay=-mixer.A_log.detach().float().exp(),
        decay_bias=mixer.dt_bias.detach().float(),
        skip=mixer.D.detach().float(),
        step_limits=(float(least), float(largest)),
        norm=_find_gated_norm(norm, num_values, num_groups),
        num_norm_groups=num_groups,
        output=check_linear(get_part(mixer, "out_proj"), "out_proj"),
    )
    heads = [found.decay, found.decay_bias, found.skip]
    if (
        any(each.shape != (num_heads,) for each in heads)
        or found.output.in_features != num_values
    ):
        raise NotRecognised(f"{type(mixer).__name__} has weights of unexpected shapes")
    _check_silu(mixer)
    return found


_FINDERS: dict[str, Callable[[Any], StateParts]] = {
    "linear_attn": _find_delta,
    "conv": _find_short_conv,
    "mamba": _find_mamba2,
}


def _find_convolution(convolution: object) -> ConvolutionParts:
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


def _find_gated_norm(norm: Any, size: int, num_groups: int = 0) -> Tensor:
    """Return the weight of a norm with gates, whose SiLU weighs its output or its input.

    Args:
      num_groups: parts that are weighed, and then normalised by themselves; 0 is a norm
        whose output is weighed.

    Raises:
      NotRecognised: it has another formula.
    """
    weight: Tensor = norm.weight.detach().float()
    if weight.shape != (size,):
        raise NotRecognised(f"{type(norm).__name__} normalizes {len(weight)} numbers")
    chance = torch.Generator().manual_seed(0)
    states, gates = torch.randn((2, 4, size), generator=chance).to(weight.device)
    epsilon, weights = norm.variance_epsilon, functional.silu(gates)
    if num_groups:
        groups = (states * weights).unflatten(-1, (num_groups, -1))
        normed = functional.rms_norm(groups, groups.shape[-1:], None, epsilon)
        expected = normed.flatten(-2) * weight
    else:
        expected = functional.rms_norm(states, (size,), weight, epsilon) * weights
    # The weight of a model in bfloat16 is rounded already, and the operands are float32.
    if not torch.allclose(norm(states, gates).float(), expected, rtol=1e-3, atol=1e-4):
        raise NotRecognised(f"{type(norm).__name__} has another formula")
    return weight


def _check_silu(mixer: Any) -> None:
    if mixer.activation not in ("silu", "swish"):
        raise NotRecognised(f"{type(mixer).__name__} has no SiLU")
