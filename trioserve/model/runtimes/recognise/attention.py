"""Attention over keys and values, found among the modules of a decoder's layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...attention.probe import LayerSpec
from ..choice import NotRecognised
from ..description import AttentionParts
from .formulas import find_optional_norm
from .given import Angles
from .products import check_linear, find_products, get_part
from .rotation import find_rotation


def find_attention(
    attention: Any,
    call: LayerSpec,
    angles: Angles,
    factor: float = 1.0,
) -> AttentionParts:
    """Find the parts of attention.

    Args:
      call: its call.
      factor: of what it reads.
      angles: its rotary angles.

    Raises:
      NotRecognised
    """
    names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    # Gemma 4's layers of full attention have the attribute, and no product in it.
    keys_are_values = getattr(attention, "v_proj", attention) is None
    if keys_are_values:
        names = names[:2]
    if call.shares is not None:
        names = names[:1]
    scale = _find_scale(attention, call, factor)
    inputs = find_products(attention, ("qkv_proj",), names)
    order = _find_order(inputs, call)
    find_optional = partial(find_optional_norm, attention, angles.cos.device)
    found = AttentionParts(
        call=call,
        inputs=inputs,
        order=order,
        inputs_scale=scale,
        has_gate=order is not None,
        query_norm=find_optional(call.key_dim, "q_norm", "q_layernorm"),
        key_norm=find_optional(call.key_dim, "k_norm", "k_layernorm"),
        value_norm=find_optional(call.value_dim, "v_norm"),
        keys_are_values=keys_are_values,
        cos=angles.cos,
        sin=angles.sin,
        output=check_linear(get_part(attention, "o_proj", "out_proj"), "o_proj"),
    )
    _check_attention(attention, found)
    return find_rotation(attention, found, angles, factor)


def _find_scale(attention: Any, call: LayerSpec, factor: float) -> Tensor | None:
    """Return the factors of queries, keys and values; Falcon-H1 has some."""
    key_factor = float(getattr(attention, "key_multiplier", 1.0))
    if factor == key_factor == 1.0:
        return None
    sizes = call.num_heads, call.num_kv_heads, call.num_kv_heads
    dims = call.key_dim, call.key_dim, call.value_dim
    factors = factor, factor * key_factor, factor
    return torch.cat(
        [
            torch.full((heads * dim,), number)
            for heads, dim, number in zip(sizes, dims, factors)
        ]
    )


def _find_order(inputs: tuple[nn.Linear, ...], call: LayerSpec) -> Tensor | None:
    """Return the order of the outputs of products with gates; None if there are none.

    The first product of attention with gates has, for each head, its query and its gate.
    """
    num_queries = call.num_heads * call.key_dim
    if len(inputs) != 3 or inputs[0].out_features != 2 * num_queries:
        return None
    if call.key_dim != call.value_dim:
        raise NotRecognised("it has gates of another size than its values")
    places = torch.arange(sum(product.out_features for product in inputs))
    first, others = places[: 2 * num_queries], places[2 * num_queries :]
    queries, gates = first.view(call.num_heads, 2, call.key_dim).unbind(1)
    return torch.cat((queries.flatten(), others, gates.flatten()))


def _check_attention(attention: nn.Module, mixer: AttentionParts) -> None:
    """Refuse attention of unexpected sizes, because the kernels trust their pointers.

    Raises:
      NotRecognised
    """
    known = {*mixer.inputs, mixer.output}
    others = {
        name
        for name, child in attention.named_children()
        if child not in known
        and "norm" not in name
        and any(True for _ in child.parameters())
    }
    call = mixer.call
    if others and call.shares is None:
        raise NotRecognised(
            f"{type(attention).__name__} has {', '.join(sorted(others))}"
        )
    if not call.is_causal or mixer.cos.shape[1] > call.key_dim:
        raise NotRecognised("its attention is not causal, or rotates more than keys")
    if call.chunk is not None:
        raise NotRecognised("its layers attend within chunks")
    if mixer.inputs_scale is not None and (
        any(product.bias is not None for product in mixer.inputs)
        or len(mixer.inputs_scale) != sum(each.out_features for each in mixer.inputs)
    ):
        raise NotRecognised("it scales queries and keys in an unexpected way")
    if mixer.value_norm is None and mixer.keys_are_values:
        raise NotRecognised("its keys are its values, without a norm")
    if mixer.value_norm is not None and call.value_dim != call.key_dim:
        raise NotRecognised("it normalizes values of another size than its keys")
    attended = call.num_heads * call.value_dim
    num_inputs = call.num_heads * call.key_dim
    if call.shares is None:
        num_inputs += call.num_kv_heads * call.key_dim
        if not mixer.keys_are_values:
            num_inputs += call.num_kv_heads * call.value_dim
    if mixer.has_gate:
        num_inputs += attended
    if (
        sum(product.out_features for product in mixer.inputs) != num_inputs
        or mixer.output.in_features != attended
    ):
        raise NotRecognised("a product has an unexpected shape, type or bias")
