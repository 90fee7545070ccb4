"""Kimi delta attention, found among a decoder's modules.

Source: KimiLinearDeltaAttention in transformers/models/kimi_linear/modeling_kimi_linear.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..choice import NotRecognised
from ..description import DeltaParts
from .products import check_linear, find_products, get_part
from .state_formulas import check_silu, find_convolution, find_gated_norm


def find_kimi(mixer: Any) -> DeltaParts:
    """Find the parts of Kimi delta attention.

    Raises:
      NotRecognised
    """
    forget = mixer.forget_gate
    num_heads, dim = mixer.num_heads, mixer.head_dim
    num_values = num_heads * dim
    norm, is_behind = find_gated_norm(mixer.o_norm, dim, has_sigmoid=True)
    products = find_products(mixer, ("q_proj", "k_proj", "v_proj", "b_proj"))
    narrow = _get_linear(forget, "f_a_proj"), _get_linear(mixer, "g_a_proj")
    found = DeltaParts(
        inputs=(*products, *narrow),
        widen_decays=_get_linear(forget, "f_b_proj"),
        widen_gates=_get_linear(mixer, "g_b_proj"),
        convolution=find_convolution(mixer.conv1d),
        num_key_heads=num_heads,
        num_value_heads=num_heads,
        key_dim=dim,
        value_dim=dim,
        decay=-forget.A_log.detach().float().exp().flatten(),
        decay_bias=forget.dt_bias.detach().float(),
        norm=norm,
        output=_get_linear(mixer, "o_proj"),
    )
    widened = [found.widen_decays, found.widen_gates]
    sizes = [each.out_features for each in (*products, *widened) if each is not None]
    if (
        not is_behind
        or sizes != [*[num_values] * 3, num_heads, num_values, num_values]
        or len(found.convolution.taps) != 3 * num_values
        or found.decay.shape != (num_heads,)
        or found.decay_bias.shape != (num_values,)
        or found.output.in_features != num_values
    ):
        raise NotRecognised(f"{type(mixer).__name__} has weights of unexpected shapes")
    check_silu(mixer)
    _check_decay(forget, found)
    return found


def _get_linear(module: Any, name: str) -> nn.Linear:
    return check_linear(get_part(module, name), name)


@torch.inference_mode()
def _check_decay(forget: Any, found: DeltaParts) -> None:
    """Refuse decays of another formula.

    Raises:
      NotRecognised
    """
    # One token whose products are 0: only the bias is left.
    nothing = torch.zeros(1, 1, forget.f_a_proj.in_features, dtype=_find_dtype(forget))
    if forget.f_a_proj.weight.is_meta:
        return
    actual = forget(nothing.to(forget.f_a_proj.weight.device)).flatten()
    steps = torch.nn.functional.softplus(found.decay_bias)
    expected = found.decay.repeat_interleave(found.key_dim) * steps
    if not torch.allclose(actual.float(), expected, rtol=1e-3, atol=1e-4):
        raise NotRecognised(f"{type(forget).__name__} has another formula")


def _find_dtype(forget: Any) -> torch.dtype:
    dtype: torch.dtype = forget.f_a_proj.weight.dtype
    return dtype
