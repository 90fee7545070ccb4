"""The weights of a decoder, found among the modules of a transformers model.

Modules are found by the attributes that the decoders of transformers share (products.py).
Their formulas are found by running them (formulas.py), and the inputs of the layers by
watching them (given.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...attention.probe import LayerSpec
from ..choice import NotRecognised
from ..description import (
    AttentionParts,
    DecoderParts,
    LayerParts,
    MixtureParts,
    MlpParts,
)
from .experts import find_mixture, find_mlp, list_activated
from .formulas import find_activation, find_epsilon, find_norm, find_optional_norm
from .given import find_plane_rotary, watch_layers
from .products import check_linear, check_shape, find_products, get_part

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def find_parts(
    model: PreTrainedModel,
    calls: tuple[LayerSpec, ...],
    max_model_len: int,
    *,
    begin: int = 0,
    is_last: bool = True,
    has_plane: bool = False,
) -> DecoderParts:
    """Find the parts of a model, or of one stage of it.

    Args:
      calls: the calls of attention of its layers, in order.
      max_model_len: rotary angles are computed for so many positions.
      begin: place of its first layer among the whole model's.
      is_last: it has the last layer, the last norm and the head.
      has_plane: it places images in a plane.

    Raises:
      NotRecognised
    """
    if any(call.shares is not None for call in calls):
        raise NotRecognised("some layers read the keys and values of others")
    # Without it, the modules of a model's image encoder would be looked at, too.
    body: Any = model.get_decoder()
    everywhere = list(get_part(body, "layers"))
    layers = everywhere[begin : begin + len(calls)]
    if len(layers) != len(calls) or (is_last and everywhere[-1] is not layers[-1]):
        raise NotRecognised("not every layer calls attention once")
    size = len(find_norm(get_part(layers[0], "input_layernorm")))
    given = watch_layers(body, everywhere, size, max_model_len)
    head = model.get_output_embeddings()
    parts = DecoderParts(
        layers=tuple(
            _find_layer(layer, call, given.rotary[begin + i])
            for i, (layer, call) in enumerate(zip(layers, calls))
        ),
        # A later stage of a pipeline receives the input of its first layer.
        embedding_scale=1.0 if begin else given.embedding_scale,
        final_norm=find_norm(get_part(body, "norm"), size) if is_last else None,
        head=check_linear(head, "its output projection") if is_last else None,
        activation=find_activation(
            module
            for layer in layers
            for module in list_activated(get_part(layer, "mlp"))
        ),
        epsilon=find_epsilon(body),
        logit_softcap=_find_softcap(model),
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


def _find_layer(
    layer: nn.Module, call: LayerSpec, rotary: tuple[Tensor, Tensor]
) -> LayerParts:
    mlp = get_part(layer, "mlp")
    # Models with four norms normalize the output of attention, too, so that the name of
    # the second norm of others means something else.
    has_four = hasattr(layer, "pre_feedforward_layernorm")
    after_attention = find_norm(get_part(layer, "post_attention_layernorm"))
    if hasattr(layer, "router"):
        raise NotRecognised("its layers have experts beside a network")
    return LayerParts(
        input_norm=find_norm(get_part(layer, "input_layernorm")),
        mixer=_find_attention(get_part(layer, "self_attn"), call, rotary),
        post_mixer_norm=after_attention if has_four else None,
        mlp_norm=(
            find_norm(get_part(layer, "pre_feedforward_layernorm"))
            if has_four
            else after_attention
        ),
        mlp=find_mixture(mlp, len(after_attention)) or find_mlp(mlp),
        post_mlp_norm=(
            find_norm(get_part(layer, "post_feedforward_layernorm"))
            if has_four
            else None
        ),
        output_scale=float(getattr(layer, "layer_scalar", 1.0)),
    )


def _find_attention(
    attention: Any, call: LayerSpec, rotary: tuple[Tensor, Tensor]
) -> AttentionParts:
    names = ("q_proj", "k_proj", "v_proj")
    # Gemma 4's layers of full attention have the attribute, and no product in it.
    keys_are_values = getattr(attention, "v_proj", attention) is None
    return AttentionParts(
        call=call,
        inputs=find_products(
            attention, ("qkv_proj",), names[:2] if keys_are_values else names
        ),
        query_norm=find_optional_norm(attention, "q_norm", call.key_dim),
        key_norm=find_optional_norm(attention, "k_norm", call.key_dim),
        value_norm=find_optional_norm(attention, "v_norm", call.value_dim),
        keys_are_values=keys_are_values,
        cos=rotary[0],
        sin=rotary[1],
        output=check_linear(get_part(attention, "o_proj"), "o_proj"),
    )


def _check_products(parts: DecoderParts, dtype: torch.dtype) -> None:
    """Refuse products of unexpected shapes, because the kernels trust their pointers."""
    size = parts.hidden_size
    if parts.head is not None:
        check_shape([parts.head], size, parts.head.out_features, dtype, has_bias=False)
    for layer in parts.layers:
        if len(layer.input_norm) != size or len(layer.mlp_norm) != size:
            raise NotRecognised("its layers differ")
        _check_attention(layer.mixer, size, dtype)
        _check_mlp(layer.mlp, size, dtype)


def _check_attention(mixer: AttentionParts, size: int, dtype: torch.dtype) -> None:
    call = mixer.call
    if not call.is_causal or mixer.cos.shape[1] > call.key_dim:
        raise NotRecognised("its attention is not causal, or rotates more than keys")
    if call.chunk is not None:
        raise NotRecognised("queries see the keys of their chunk alone")
    if mixer.value_norm is None and mixer.keys_are_values:
        raise NotRecognised("its keys are its values, without a norm")
    if mixer.value_norm is not None and call.value_dim != call.key_dim:
        raise NotRecognised("it normalizes values of another size than its keys")
    inputs = (call.num_heads + call.num_kv_heads) * call.key_dim
    if not mixer.keys_are_values:
        inputs += call.num_kv_heads * call.value_dim
    check_shape(mixer.inputs, size, inputs, dtype)
    check_shape([mixer.output], call.num_heads * call.value_dim, size, dtype)


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
