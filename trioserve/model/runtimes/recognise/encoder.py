"""The weights of an encoder of BERT's kind, found among the modules of its model.

Encoders of this kind compute the same, but name their modules in a few ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ...attention.probe import LayerSpec
from ..choice import NotRecognised
from .formulas import name_activation
from .products import check_linear, check_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLayerParts:
    """One layer. Norms come after the sum with the input of the layer or its half.

    Args:
      qkv: the products of queries, keys and values.
    """

    qkv: tuple[nn.Linear, ...]
    output: nn.Linear
    attention_norm: nn.LayerNorm
    up: nn.Linear
    down: nn.Linear
    output_norm: nn.LayerNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderParts:
    """The layers of an encoder.

    Args:
      owner, name: the module that holds the list of layers, and its attribute.
      attention: shared by all layers.
      activation: a name in formulas.ACTIVATION_CODES.
      epsilon: the norms add it to the variance.
    """

    owner: nn.Module
    name: str
    layers: tuple[EncoderLayerParts, ...]
    attention: LayerSpec
    activation: str
    epsilon: float


@dataclass(frozen=True, slots=True)
class _Names:
    """The paths of the modules of a layer."""

    query: str
    key: str
    value: str
    output: str
    attention_norm: str
    up: str
    activation: str
    down: str
    output_norm: str


_KNOWN_NAMES = (
    # BERT, RoBERTa, XLM-RoBERTa, ELECTRA and more.
    _Names(
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "attention.output.LayerNorm",
        "intermediate.dense",
        "intermediate.intermediate_act_fn",
        "output.dense",
        "output.LayerNorm",
    ),
    # DistilBERT.
    _Names(
        "attention.q_lin",
        "attention.k_lin",
        "attention.v_lin",
        "attention.out_lin",
        "sa_layer_norm",
        "ffn.lin1",
        "ffn.activation",
        "ffn.lin2",
        "output_layer_norm",
    ),
)


def find_encoder_parts(model: nn.Module, layers: Sequence[LayerSpec]) -> EncoderParts:
    """Find the parts of an encoder.

    Args:
      layers: its calls of attention, in order.

    Raises:
      NotRecognised
    """
    owner, name = _find_blocks(model, layers)
    blocks = list(getattr(owner, name))
    known = [names for names in _KNOWN_NAMES if _has_all(blocks[0], names)]
    if not known:
        raise NotRecognised(f"{type(blocks[0]).__name__} is not a layer like BERT's")
    parts = EncoderParts(
        owner=owner,
        name=name,
        layers=tuple(_find_layer(block, known[0]) for block in blocks),
        attention=_find_attention(layers),
        activation=name_activation(_get(each, known[0].activation) for each in blocks),
        epsilon=_find_epsilon(blocks),
    )
    _check_products(parts)
    return parts


def _find_blocks(
    model: nn.Module, layers: Sequence[LayerSpec]
) -> tuple[nn.Module, str]:
    """Return the module that holds the list of layers, and its attribute."""
    path = layers[0].module_name.split(".")
    for end in range(1, len(path)):
        owner = model.get_submodule(".".join(path[: end - 1]))
        blocks = getattr(owner, path[end - 1])
        if isinstance(blocks, nn.ModuleList):
            if len(blocks) != len(layers):
                raise NotRecognised("not every layer calls attention once")
            return owner, path[end - 1]
    raise NotRecognised("its layers are in no list")


def _has_all(block: nn.Module, names: _Names) -> bool:
    return all(_get(block, getattr(names, field)) for field in names.__slots__)


def _get(block: nn.Module, path: str) -> Any:
    """Return the module at a path; None if there is none."""
    module: Any = block
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


def _find_layer(block: nn.Module, names: _Names) -> EncoderLayerParts:
    if getattr(block, "crossattention", None) is not None:
        raise NotRecognised("its layers attend to another model")

    def linear(name: str) -> nn.Linear:
        return check_linear(_get(block, name), name)

    return EncoderLayerParts(
        qkv=(linear(names.query), linear(names.key), linear(names.value)),
        output=linear(names.output),
        attention_norm=_find_norm(block, names.attention_norm),
        up=linear(names.up),
        down=linear(names.down),
        output_norm=_find_norm(block, names.output_norm),
    )


def _find_norm(block: nn.Module, name: str) -> nn.LayerNorm:
    module = _get(block, name)
    if type(module) is not nn.LayerNorm or module.weight is None or module.bias is None:
        raise NotRecognised(f"{name} is a {type(module).__name__}")
    return module


def _find_attention(layers: Sequence[LayerSpec]) -> LayerSpec:
    first = layers[0]

    def describe(spec: LayerSpec) -> tuple[object, ...]:
        return spec.num_heads, spec.key_dim, spec.value_dim, spec.scaling

    for spec in layers:
        if describe(spec) != describe(first):
            raise NotRecognised("its layers differ")
        if spec.is_causal or spec.window is not None or spec.needs_scores:
            raise NotRecognised("not every token sees all of its text")
        if spec.num_kv_heads != spec.num_heads or spec.value_dim != spec.key_dim:
            raise NotRecognised("its heads share keys or differ in their dimensions")
    return first


def _find_epsilon(blocks: Sequence[nn.Module]) -> float:
    """Return the epsilon that all norms of the layers share."""
    found = {
        module.eps
        for block in blocks
        for module in block.modules()
        if isinstance(module, nn.LayerNorm)
    }
    if len(found) != 1:
        raise NotRecognised("its norms have different epsilons")
    return found.pop()


def _check_products(parts: EncoderParts) -> None:
    """Refuse products of unexpected shapes, because the kernels trust their pointers."""
    first = parts.layers[0]
    size, dtype = first.attention_norm.normalized_shape, first.output.weight.dtype
    width, inner = size[0], first.up.out_features
    if width % 2 or parts.attention.key_dim % 2:
        raise NotRecognised("its tokens or heads have an odd number of dimensions")
    attended = parts.attention.num_heads * parts.attention.key_dim
    for layer in parts.layers:
        if {
            layer.attention_norm.normalized_shape,
            layer.output_norm.normalized_shape,
        } != {size}:
            raise NotRecognised("a norm has an unexpected shape")
        for product in layer.qkv:
            check_shape([product], width, attended, dtype)
        check_shape([layer.output], attended, width, dtype)
        check_shape([layer.up], width, inner, dtype)
        check_shape([layer.down], inner, width, dtype)
