"""The weights of a decoder, found among the modules of a transformers model.

Modules are found by the attributes that the decoders of transformers share. What they
compute is found by running them: a norm's weight by normalizing ones, an activation by
comparing it, rotary angles by watching what the layers are given. So a variant such as
Gemma's norm, which adds one to its weight, needs no case of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ..attention.probe import LayerSpec


class NotRecognised(Exception):
    """Raised when a model cannot run on the native kernels; its message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """One layer. All but the products are float32.

    Args:
      attention: its call of attention.
      qkv: the products of queries, keys and values, whose outputs follow each other.
      cos, sin: (max_model_len, rotary_dim), of each position
      post_attention_norm, post_mlp_norm: weights of norms before the residual is added.
    """

    attention: LayerSpec
    input_norm: Tensor
    qkv: tuple[nn.Linear, ...]
    query_norm: Tensor | None
    key_norm: Tensor | None
    cos: Tensor
    sin: Tensor
    output: nn.Linear
    post_attention_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: tuple[nn.Linear, ...]
    down: nn.Linear
    post_mlp_norm: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderParts:
    """A whole decoder.

    Args:
      embedding_scale: factor of the vectors of tokens before the first layer.
      activation: silu or gelu_tanh.
      epsilon: what the norms add to the mean square.
      logit_softcap: logits become softcap * tanh(logit / softcap); None leaves them.
    """

    layers: tuple[LayerParts, ...]
    embedding_scale: float
    final_norm: Tensor
    head: nn.Linear
    activation: str
    epsilon: float
    logit_softcap: float | None


def find_parts(
    model: PreTrainedModel, layers: tuple[LayerSpec, ...], max_model_len: int
) -> DecoderParts:
    """Find the parts of a model.

    Args:
      layers: its calls of attention, in order.
      max_model_len: rotary angles are computed for so many positions.

    Raises:
      NotRecognised
    """
    body: Any = model.base_model
    blocks = list(_get(body, "layers"))
    if len(blocks) != len(layers):
        raise NotRecognised("not every layer calls attention once")
    given = _watch_layers(model, body, blocks, max_model_len)
    parts = DecoderParts(
        layers=tuple(
            _find_layer(block, spec, given.rotary[i])
            for i, (block, spec) in enumerate(zip(blocks, layers))
        ),
        embedding_scale=given.embedding_scale,
        final_norm=_find_norm(_get(body, "norm")),
        head=_check_linear(model.get_output_embeddings(), "its output projection"),
        activation=_find_activation(blocks),
        epsilon=_find_epsilon(model),
        logit_softcap=getattr(model.config, "final_logit_softcapping", None),
    )
    _check_products(parts, model.dtype)
    return parts


def _find_layer(
    block: nn.Module, spec: LayerSpec, rotary: tuple[Tensor, Tensor]
) -> LayerParts:
    attention, mlp = _get(block, "self_attn"), _get(block, "mlp")
    # Models with four norms normalize the output of attention, too, so that the name of
    # the second norm of others means something else.
    has_four = hasattr(block, "pre_feedforward_layernorm")
    after_attention = _find_norm(_get(block, "post_attention_layernorm"))
    return LayerParts(
        attention=spec,
        input_norm=_find_norm(_get(block, "input_layernorm")),
        qkv=_find_products(attention, ("qkv_proj",), ("q_proj", "k_proj", "v_proj")),
        query_norm=_find_optional_norm(attention, "q_norm", spec.key_dim),
        key_norm=_find_optional_norm(attention, "k_norm", spec.key_dim),
        cos=rotary[0],
        sin=rotary[1],
        output=_check_linear(_get(attention, "o_proj"), "o_proj"),
        post_attention_norm=after_attention if has_four else None,
        mlp_norm=(
            _find_norm(_get(block, "pre_feedforward_layernorm"))
            if has_four
            else after_attention
        ),
        gate_up=_find_products(mlp, ("gate_up_proj",), ("gate_proj", "up_proj")),
        down=_check_linear(_get(mlp, "down_proj"), "down_proj"),
        post_mlp_norm=(
            _find_norm(_get(block, "post_feedforward_layernorm")) if has_four else None
        ),
    )


def _get(module: Any, name: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        raise NotRecognised(f"{type(module).__name__} has no {name}")
    return found


# ---- products ------------------------------------------------------------------------


def _find_products(module: Any, *choices: tuple[str, ...]) -> tuple[nn.Linear, ...]:
    for names in choices:
        if all(hasattr(module, name) for name in names):
            return tuple(_check_linear(getattr(module, name), name) for name in names)
    raise NotRecognised(f"{type(module).__name__} has none of {choices}")


def _check_linear(module: object, name: str) -> nn.Linear:
    # Subclasses may do more than multiply.
    if type(module) is not nn.Linear:
        raise NotRecognised(f"{name} is a {type(module).__name__}")
    return module


def _check_products(parts: DecoderParts, dtype: torch.dtype) -> None:
    """Refuse products of unexpected shapes, because the kernels trust their pointers."""
    size = len(parts.final_norm)
    attention, rotary_dim = parts.layers[0].attention, parts.layers[0].cos.shape[1]
    intermediate_size = parts.layers[0].down.in_features
    attended = attention.num_heads * attention.value_dim
    qkv = (attention.num_heads + attention.num_kv_heads) * attention.key_dim
    qkv += attention.num_kv_heads * attention.value_dim
    _check_shape([parts.head], size, parts.head.out_features, dtype, has_bias=False)
    for layer in parts.layers:
        if (
            _list_sizes(layer.attention) != _list_sizes(attention)
            or not layer.attention.is_causal
            or layer.cos.shape[1] != rotary_dim
            or rotary_dim > attention.key_dim
            or len(layer.input_norm) != size
            or len(layer.mlp_norm) != size
        ):
            raise NotRecognised("its layers differ")
        _check_shape(layer.qkv, size, qkv, dtype)
        _check_shape([layer.output], attended, size, dtype)
        _check_shape(layer.gate_up, size, 2 * intermediate_size, dtype, has_bias=False)
        _check_shape([layer.down], intermediate_size, size, dtype, has_bias=False)


def _list_sizes(spec: LayerSpec) -> tuple[int, ...]:
    return spec.num_heads, spec.num_kv_heads, spec.key_dim, spec.value_dim


def _check_shape(
    products: Sequence[nn.Linear],
    num_inputs: int,
    num_outputs: int,
    dtype: torch.dtype,
    *,
    has_bias: bool = True,
) -> None:
    """Check products whose outputs follow each other.

    Args:
      has_bias: they may have one.
    """
    if (
        sum(product.out_features for product in products) != num_outputs
        or any(product.in_features != num_inputs for product in products)
        or any(product.weight.dtype != dtype for product in products)
        or any(product.bias is not None and not has_bias for product in products)
    ):
        raise NotRecognised("a product has an unexpected shape, type or bias")


# ---- norms and activations -----------------------------------------------------------


def _find_norm(norm: nn.Module, size: int | None = None) -> Tensor:
    """Return the weight of a root mean square norm, (size,) float32.

    The mean square of ones is one, so a norm of ones returns its weight.
    """
    weight = getattr(norm, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 1:
        raise NotRecognised(f"{type(norm).__name__} has no weight of one dimension")
    if size is not None and len(weight) != size:
        raise NotRecognised(f"{type(norm).__name__} normalizes {len(weight)} numbers")
    epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(epsilon, float):
        raise NotRecognised(f"{type(norm).__name__} has no epsilon")
    ones = torch.ones(len(weight), dtype=torch.float32, device=weight.device)
    found: Tensor = norm(ones).float() * (1 + epsilon) ** 0.5
    return found.contiguous()


def _find_optional_norm(module: Any, name: str, size: int) -> Tensor | None:
    norm = getattr(module, name, None)
    return None if norm is None else _find_norm(norm, size)


def _find_epsilon(model: nn.Module) -> float:
    """Return the epsilon that all norms of a model share."""
    found = {
        getattr(module, "variance_epsilon", getattr(module, "eps", None))
        for module in model.modules()
        if "norm" in type(module).__name__.lower()
    }
    if len(found) != 1:
        raise NotRecognised("its norms have different epsilons")
    epsilon = found.pop()
    assert epsilon is not None, "a norm without an epsilon is not recognised"
    return float(epsilon)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def _find_activation(blocks: list[nn.Module]) -> str:
    """Return the name of the activation that all layers share."""
    points = torch.linspace(-8, 8, 257)
    names = set()
    for block in blocks:
        mlp: Any = _get(block, "mlp")
        function = getattr(mlp, "act_fn", getattr(mlp, "activation_fn", None))
        if function is None:
            raise NotRecognised(f"{type(mlp).__name__} has no activation")
        values = function(points)
        names |= {
            name
            for name, known in _ACTIVATIONS.items()
            if torch.allclose(values, known(points), atol=1e-5)
        }
    if len(names) != 1:
        raise NotRecognised("its activation is neither SiLU nor GELU's tanh form")
    return names.pop()


# ---- what the layers are given -------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What a model gives its layers.

    Args:
      rotary: for each layer, cosines and sines, (max_model_len, rotary_dim) float32 both
      embedding_scale: factor of the vectors of tokens before the first layer.
    """

    rotary: list[tuple[Tensor, Tensor]]
    embedding_scale: float


def _watch_layers(
    model: PreTrainedModel, body: nn.Module, blocks: list[nn.Module], max_model_len: int
) -> _Given:
    """Run a model whose layers do nothing but record what they are given."""
    rotary: list[tuple[Tensor, Tensor]] = []
    scales: list[float] = []

    def record(hidden: Tensor, **arguments: Any) -> Tensor:
        angles = arguments.get("position_embeddings")
        if not isinstance(angles, tuple) or len(angles) != 2:
            raise NotRecognised("its layers get no rotary angles")
        rotary.append(angles)
        scales.append(float(hidden[0, 0, 0]))
        return hidden

    embedding: Any = model.get_input_embeddings()
    width = embedding.weight.shape[1]
    vectors = torch.ones(1, 1, width).expand(1, max_model_len, width)
    with ExitStack() as stack, torch.inference_mode():
        for block in blocks:
            stack.enter_context(_replace_forward(block, record))
        stack.enter_context(_replace_forward(_get(body, "norm"), lambda x: x))
        body(
            inputs_embeds=vectors,
            position_ids=torch.arange(max_model_len)[None],
            use_cache=False,
        )
    return _Given(rotary=[_flatten(each) for each in rotary], embedding_scale=scales[0])


@contextmanager
def _replace_forward(
    module: nn.Module, forward: Callable[..., Tensor]
) -> Iterator[None]:
    module.forward = forward
    try:
        yield
    finally:
        # The method of its class shows again.
        del module.forward


def _flatten(angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    cos, sin = (each.float().squeeze(0).contiguous() for each in angles)
    if cos.dim() != 2 or cos.shape != sin.shape or cos.shape[1] % 2:
        raise NotRecognised("its rotary angles have more than one dimension")
    return cos, sin
