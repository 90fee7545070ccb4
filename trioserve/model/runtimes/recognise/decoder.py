"""The weights of a decoder, found among the modules of a transformers model.

Modules are found by the attributes that the decoders of transformers share (products.py).
Their formulas are found by running them (formulas.py), and the inputs of the layers by
watching them (given.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...attention.probe import LayerSpec
from ..choice import NotRecognised
from ..description import (
    AttentionParts,
    BesideParts,
    DecoderParts,
    MixtureParts,
    MlpParts,
)
from .attention import check_attention
from .formulas import find_epsilon, find_norm
from .given import find_plane_rotary, watch_layers
from .layers import find_activation, find_first_norm, find_layers
from .lookups import check_lookup, find_token_lookup
from .products import check_linear, check_shape, get_final_norm, get_part

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def find_parts(
    model: PreTrainedModel,
    calls: tuple[LayerSpec, ...],
    max_model_len: int,
    *,
    num_states: int = 0,
    begin: int = 0,
    is_last: bool = True,
    has_plane: bool = False,
) -> DecoderParts:
    """Find the parts of a model, or of one stage of it.

    Args:
      calls: the calls of attention of its layers, in order.
      num_states: its layers that keep a state in place of keys and values.
      max_model_len: rotary angles are computed for so many positions.
      begin: place of its first layer among the whole model's.
      is_last: it has the last layer, the last norm and the head.
      has_plane: it places images in a plane.

    Raises:
      NotRecognised
    """
    # Without it, the modules of a model's image encoder would be looked at, too.
    body: Any = model.get_decoder()
    everywhere = list(get_part(body, "layers"))
    num_layers = len(calls) + num_states
    layers = everywhere[begin : begin + num_layers]
    if len(layers) != num_layers or (is_last and everywhere[-1] is not layers[-1]):
        raise NotRecognised("not every layer calls attention once")
    size = len(find_first_norm(layers[0]))
    given = watch_layers(body, everywhere, size, max_model_len)
    head = model.get_output_embeddings()
    final_norm = None
    if is_last:
        # A product of smaller numbers gives the smaller logits.
        final_norm = find_norm(get_final_norm(body), size) / _find_logits_scale(model)
    parts = DecoderParts(
        layers=find_layers(layers, calls, given.rotary[begin:]),
        # A later stage of a pipeline receives the input of its first layer.
        embedding_scale=1.0 if begin else given.embedding_scale,
        final_norm=final_norm,
        head=check_linear(head, "its output projection") if is_last else None,
        activation=find_activation(layers),
        epsilon=find_epsilon(body),
        residual_scale=_find_residual_scale(layers),
        logit_softcap=_find_softcap(model),
        look_up=find_token_lookup(body, layers),
        plane_rotary=find_plane_rotary(body, everywhere, size) if has_plane else None,
    )
    _check_products(parts, model.dtype)
    if not begin:
        _check_embedding(model, size)
    return parts


def _find_softcap(model: PreTrainedModel) -> float | None:
    config = model.config.get_text_config(decoder=True)
    softcap: float | None = getattr(config, "final_logit_softcapping", None)
    return softcap


def _find_logits_scale(model: PreTrainedModel) -> float:
    """Return the number by which logits are divided."""
    config = model.config.get_text_config(decoder=True)
    return float(getattr(config, "logits_scaling", 1.0))


def _find_residual_scale(layers: Sequence[nn.Module]) -> float:
    scales = {float(getattr(each, "residual_multiplier", 1.0)) for each in layers}
    if len(scales) != 1:
        raise NotRecognised("its layers differ")
    return scales.pop()


def _check_products(parts: DecoderParts, dtype: torch.dtype) -> None:
    """Refuse products of unexpected shapes, because the kernels trust their pointers."""
    size = parts.hidden_size
    if parts.head is not None:
        check_shape([parts.head], size, parts.head.out_features, dtype, has_bias=False)
    for layer in parts.layers:
        if len(layer.input_norm) != size or len(layer.mlp_norm) != size:
            raise NotRecognised("its layers differ")
        if isinstance(layer.mixer, AttentionParts):
            check_attention(layer.mixer)
        num_inputs = sum(product.out_features for product in layer.mixer.inputs)
        check_shape(layer.mixer.inputs, size, num_inputs, dtype)
        num_outputs = layer.mixer.output.in_features
        check_shape([layer.mixer.output], num_outputs, size, dtype)
        _check_mlp(layer.mlp, size, dtype)
        if layer.beside is not None:
            _check_beside(layer.beside, size, dtype)
        if layer.lookup is not None:
            check_lookup(layer.lookup, size, dtype)


def _check_beside(beside: BesideParts, size: int, dtype: torch.dtype) -> None:
    _check_mlp(beside.mixture, size, dtype)
    norms = beside.router_norm, beside.input_norm
    if {len(norm) for norm in (*norms, beside.output_norm, beside.network_norm)} != {
        size
    }:
        raise NotRecognised("its norms have different sizes")


def _check_mlp(
    mlp: MlpParts | MixtureParts | None, size: int, dtype: torch.dtype
) -> None:
    if isinstance(mlp, MixtureParts):
        _check_mlp(mlp.shared, size, dtype)
        if mlp.shared_gate is not None:
            check_shape([mlp.shared_gate], size, 1, dtype, has_bias=False)
        if mlp.experts.down_proj.dtype != dtype:
            raise NotRecognised("its experts have another type than its other weights")
    elif mlp is not None:
        inner = mlp.down.in_features
        check_shape(mlp.gate_up, size, 2 * inner, dtype, has_bias=False)
        check_shape([mlp.down], inner, size, dtype, has_bias=False)


def _check_embedding(model: PreTrainedModel, size: int) -> None:
    embedding: Any = model.get_input_embeddings()
    if embedding.weight.shape[1] != size:
        raise NotRecognised("its first layer does not read the vectors of tokens")
