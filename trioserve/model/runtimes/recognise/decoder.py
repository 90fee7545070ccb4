"""The weights of a decoder, found among the modules of a transformers model.

Modules are found by the attributes that the decoders of transformers share (products.py).
Their formulas are found by running them (formulas.py), and the inputs of the layers by
watching them (given.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...attention.probe import LayerSpec
from ..choice import NotRecognised
from ..description import (
    BesideParts,
    Body,
    DecoderParts,
    DeltaParts,
    LatentParts,
    LookupParts,
    MixtureParts,
    MlpParts,
)
from .formulas import find_epsilon, find_norm
from .given import find_plane_rotary, watch_layers
from .latents import check_latents
from .layers import find_activation, find_layers
from .lookups import check_lookup, find_token_lookup
from .norms import find_first_norm
from .products import check_linear, check_shape, get_final_norm, get_part

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def find_parts(
    model: PreTrainedModel,
    calls: tuple[LayerSpec, ...],
    max_model_len: int,
    *,
    begin: int = 0,
    end: int | None = None,
    has_plane: bool = False,
) -> DecoderParts:
    """Find the parts of a model, or of one stage of it.

    Args:
      calls: the calls of attention of its layers, in order.
      max_model_len: rotary angles are computed for so many positions.
      begin, end: its layers among the whole model's; None is the last one, with the last norm
        and the head.
      has_plane: it places images in a plane.

    Raises:
      NotRecognised
    """
    # Without it, the modules of a model's image encoder would be looked at, too.
    body: Any = model.get_decoder()
    everywhere = list(get_part(body, "layers"))
    layers = everywhere[begin:end]
    size = len(find_first_norm(layers[0]))
    given = watch_layers(body, everywhere, size, max_model_len)
    head = model.get_output_embeddings()
    is_last = end in (None, len(everywhere))
    final_norm = None
    if is_last:
        # A product of smaller numbers gives the smaller logits.
        final_norm = find_norm(get_final_norm(body), size) * _find_logits_scale(model)
    parts = DecoderParts(
        layers=find_layers(layers, calls, given.rotary[begin:end]),
        # A later stage of a pipeline receives the input of its first layer.
        embedding_scale=1.0 if begin else given.embedding_scale,
        final_norm=final_norm,
        head=check_linear(head, "its output projection") if is_last else None,
        activation=find_activation(layers),
        epsilon=find_epsilon(body),
        logit_softcap=_find_softcap(model),
        look_up=find_token_lookup(body, layers),
        plane_rotary=find_plane_rotary(body, everywhere, size) if has_plane else None,
        names={module: each for each, module in model.named_modules()},
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
    """Return the factor of logits."""
    config = model.config.get_text_config(decoder=True)
    factor = float(getattr(config, "lm_head_multiplier", 1.0))
    return factor / float(getattr(config, "logits_scaling", 1.0))


def _check_products(parts: DecoderParts, dtype: torch.dtype) -> None:
    """Refuse products of unexpected shapes, because the kernels trust their pointers."""
    size = parts.hidden_size
    if parts.head is not None:
        check_shape([parts.head], size, parts.head.out_features, dtype, has_bias=False)
    for layer in parts.layers:
        for sublayer in layer.sublayers:
            norms = sublayer.norm, sublayer.post_norm
            if any(norm is not None and len(norm) != size for norm in norms):
                raise NotRecognised("its layers differ")
            _check_body(sublayer.body, size, dtype)


def _check_body(body: Body, size: int, dtype: torch.dtype) -> None:
    match body:
        case MixtureParts():
            _check_mixture(body, size, dtype)
        case MlpParts():
            _check_mlp(body, size, dtype)
        case BesideParts():
            _check_mlp(body.network, size, dtype)
            _check_beside(body, size, dtype)
        case LookupParts():
            check_lookup(body, size, dtype)
        case _:
            if isinstance(body, LatentParts):
                check_latents(body, dtype)
            num_inputs = sum(product.out_features for product in body.inputs)
            check_shape(body.inputs, size, num_inputs, dtype)
            check_shape([body.output], body.output.in_features, size, dtype)
            if isinstance(body, DeltaParts):
                _check_widening(body, dtype)


def _check_widening(delta: DeltaParts, dtype: torch.dtype) -> None:
    """Refuse narrow numbers of other sizes than those that are widened."""
    widening = [each for each in (delta.widen_decays, delta.widen_gates) if each]
    for narrow, wide in zip(
        delta.inputs[len(delta.inputs) - len(widening) :], widening
    ):
        # The kernels read pairs of numbers.
        if narrow.out_features % 2:
            raise NotRecognised("it widens an odd number of numbers")
        check_shape(
            *([wide], narrow.out_features, wide.out_features, dtype), has_bias=False
        )


def _check_beside(beside: BesideParts, size: int, dtype: torch.dtype) -> None:
    _check_mixture(beside.mixture, size, dtype)
    norms = beside.router_norm, beside.input_norm
    if {len(norm) for norm in (*norms, beside.output_norm, beside.network_norm)} != {
        size
    }:
        raise NotRecognised("its norms have different sizes")


def _check_mixture(mixture: MixtureParts, size: int, dtype: torch.dtype) -> None:
    if mixture.router.shape[1] != size:
        raise NotRecognised("its router has an unexpected shape")
    if mixture.shared is not None:
        _check_mlp(mixture.shared, size, dtype)
    if mixture.shared_gate is not None:
        check_shape([mixture.shared_gate], size, 1, dtype, has_bias=False)
    if mixture.experts.down_proj.dtype != dtype:
        raise NotRecognised("its experts have another type than its other weights")
    if mixture.output is not None:
        latent = mixture.output.in_features
        if latent % 2:
            raise NotRecognised("its experts read an odd number of numbers")
        check_shape(mixture.inputs, size, latent, dtype)
        check_shape([mixture.output], latent, size, dtype)


def _check_mlp(mlp: MlpParts, size: int, dtype: torch.dtype) -> None:
    inner = mlp.inner_size
    num_inputs = 2 * inner if mlp.has_gate else inner
    check_shape(mlp.inputs, size, num_inputs, dtype, has_bias=False)
    check_shape([mlp.output], inner, size, dtype, has_bias=False)


def _check_embedding(model: PreTrainedModel, size: int) -> None:
    embedding: Any = model.get_input_embeddings()
    if embedding.weight.shape[1] != size:
        raise NotRecognised("its first layer does not read the vectors of tokens")
