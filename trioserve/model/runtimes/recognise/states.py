"""Layers that keep a state in place of keys and values, found among a decoder's modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..choice import NotRecognised
from ..description import DeltaParts, ShortConvParts, StateParts
from .kimi import find_kimi
from .mamba2 import find_mamba2
from .products import check_linear, find_products, get_part
from .state_formulas import check_silu, find_convolution, find_gated_norm


def find_state(mixer: nn.Module) -> StateParts | None:
    """Find the parts of a state; None if a module keeps none.

    Raises:
      NotRecognised
    """
    for names, find in _FINDERS:
        if all(hasattr(mixer, name) for name in names):
            return find(mixer)
    return None


def _find_delta(mixer: Any) -> DeltaParts:
    num_keys, num_values = mixer.num_k_heads, mixer.num_v_heads
    key_dim, value_dim = mixer.head_k_dim, mixer.head_v_dim
    inputs, order = _find_delta_inputs(mixer)
    norm, is_behind = find_gated_norm(get_part(mixer, "norm"), value_dim)
    found = DeltaParts(
        inputs=inputs,
        order=order,
        convolution=find_convolution(mixer.conv1d),
        num_key_heads=num_keys,
        num_value_heads=num_values,
        key_dim=key_dim,
        value_dim=value_dim,
        decay=-mixer.A_log.detach().float().exp(),
        decay_bias=mixer.dt_bias.detach().float(),
        norm=norm,
        output=check_linear(get_part(mixer, "out_proj"), "out_proj"),
    )
    num_channels = 2 * num_keys * key_dim + num_values * value_dim
    num_inputs = sum(product.out_features for product in inputs)
    if (
        not is_behind
        or num_values % num_keys
        or len(found.convolution.taps) != num_channels
        or found.decay.shape != (num_values,)
        or found.decay_bias.shape != (num_values,)
        or num_inputs != num_channels + num_values * (value_dim + 2)
        or found.output.in_features != num_values * value_dim
    ):
        raise NotRecognised(f"{type(mixer).__name__} has weights of unexpected shapes")
    check_silu(mixer)
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
        convolution=find_convolution(mixer.conv),
        output=check_linear(get_part(mixer, "out_proj"), "out_proj"),
    )
    size = len(found.convolution.taps)
    if found.inputs[0].out_features != 3 * size or found.output.in_features != size:
        raise NotRecognised(f"{type(mixer).__name__} has weights of unexpected shapes")
    return found


# The attributes by which a module is tried.
_FINDERS: tuple[tuple[tuple[str, ...], Callable[[Any], StateParts]], ...] = (
    (("conv1d", "forget_gate"), find_kimi),
    (("conv1d", "ssm_state_size"), find_mamba2),
    (("conv1d", "num_k_heads"), _find_delta),
    (("conv", "in_proj"), _find_short_conv),
)
