"""The inputs of a model's layers, found by running the model without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..choice import NotRecognised
from .products import get_final_norm, get_part

# The forms in which layers return their output.
_OUTPUTS: tuple[Callable[[Tensor], object], ...] = (
    lambda hidden: hidden,
    lambda hidden: (hidden,),
    lambda hidden: (hidden, None),
)

# Tokens whose positions on three axes are tried.
_NUM_PLACED = 16


class Angles(NamedTuple):
    """The rotary angles of a layer.

    Args:
      cos, sin: (max_model_len, rotary_dim) float32
      are_complex: the layer turns complex numbers: neighbours are pairs.
    """

    cos: Tensor
    sin: Tensor
    are_complex: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The inputs of a model's layers.

    Args:
      rotary: the angles of each layer.
      embedding_scale: factor of the vectors of tokens before the first layer.
    """

    rotary: list[Angles]
    embedding_scale: float


def watch_layers(
    body: nn.Module, layers: list[nn.Module], hidden_size: int, max_model_len: int
) -> Given:
    """Run a model whose layers do nothing but record their inputs.

    Args:
      body: the model around the layers, up to the last norm.
      layers: all that it calls, in order.

    Raises:
      NotRecognised
    """
    device = _find_device(body)
    vectors = torch.ones(1, 1, hidden_size, device=device)
    vectors = vectors.expand(1, max_model_len, hidden_size)
    positions = torch.arange(max_model_len, device=device)[None]
    rotary, scales = _record(body, layers, vectors, positions)
    if len(rotary) != len(layers):
        raise NotRecognised("not every layer runs once")
    # Layers are given the same tensors, which become float32 once.
    known = {id(each[0]): each for each in rotary}
    flat = {place: _flatten(each) for place, each in known.items()}
    return Given(
        rotary=[flat[id(each[0])] for each in rotary], embedding_scale=scales[0]
    )


def find_plane_rotary(
    body: nn.Module, layers: list[nn.Module], hidden_size: int
) -> nn.Module:
    """Return the module that turns positions on three axes into rotary angles.

    Raises:
      NotRecognised: a layer is given angles of another module.
    """
    rotary: nn.Module = get_part(body, "rotary_emb")
    device = _find_device(body)
    vectors = torch.ones(1, _NUM_PLACED, hidden_size, device=device)
    chance = torch.Generator().manual_seed(0)
    positions = torch.randint(_NUM_PLACED, (3, 1, _NUM_PLACED), generator=chance)
    positions = positions.to(device)
    with torch.inference_mode():
        expected = _flatten(rotary(vectors, positions))
    seen, _ = _record(body, layers, vectors, positions)
    for angles in seen:
        if not all(map(torch.equal, _flatten(angles)[:2], expected[:2])):
            raise NotRecognised("it places images in a plane in a way of its own")
    return rotary


def _find_device(body: nn.Module) -> torch.device:
    return next(body.parameters()).device


def _record(
    body: nn.Module, layers: list[nn.Module], vectors: Tensor, positions: Tensor
) -> tuple[list[tuple[Any, ...]], list[float]]:
    """Return each layer's rotary angles, and the first number of its input."""
    for wrap in _OUTPUTS:
        try:
            return _record_calls(body, layers, vectors, positions, wrap)
        except (TypeError, ValueError, IndexError):
            # The model expects another form of its layers' outputs.
            continue
    raise NotRecognised("its layers return something else")


def _record_calls(
    body: nn.Module,
    layers: list[nn.Module],
    vectors: Tensor,
    positions: Tensor,
    wrap: Callable[[Tensor], object],
) -> tuple[list[tuple[Any, ...]], list[float]]:
    """Return the same, with layers that return their output in some form."""
    rotary: list[tuple[Any, ...]] = []
    scales: list[float] = []
    turns_nothing = not any(
        "rotary" in name.lower() for name, _ in body.named_modules()
    )

    def record(hidden: Tensor, *others: object, **arguments: Any) -> object:
        angles = arguments.get("position_embeddings")
        if angles is None and ("position_embeddings" in arguments or turns_nothing):
            angles = 2 * (vectors.new_empty(1, vectors.shape[1], 0),)
        if isinstance(angles, Tensor) and angles.is_complex():
            angles = angles.real, angles.imag, True
        elif not isinstance(angles, tuple) or len(angles) != 2:
            raise NotRecognised("its layers get no rotary angles")
        rotary.append(angles)
        scales.append(float(hidden[0, 0, 0]))
        return wrap(hidden)

    with ExitStack() as stack, torch.inference_mode():
        for layer in layers:
            stack.enter_context(replace_method(layer, "forward", record))
        stack.enter_context(
            replace_method(get_final_norm(body), "forward", lambda x: x)
        )
        if hasattr(body, "project_per_layer_inputs"):
            # Vectors that layers look up for each token would take gigabytes here.
            nothing = vectors.new_zeros(1, 1, len(layers), 1)
            for name in ("get_per_layer_inputs", "project_per_layer_inputs"):
                stack.enter_context(replace_method(body, name, lambda *_: nothing))
        body(inputs_embeds=vectors, position_ids=positions, use_cache=False)
    return rotary, scales


@contextmanager
def replace_method(
    module: nn.Module, name: str, method: Callable[..., object]
) -> Iterator[None]:
    """Give a module another method inside the block."""
    setattr(module, name, method)
    try:
        yield
    finally:
        # The method of its class shows again.
        delattr(module, name)


def _flatten(angles: tuple[Any, ...]) -> Angles:
    cos, sin = (each.float().squeeze(0).contiguous() for each in angles[:2])
    are_complex = len(angles) == 3
    if are_complex and cos.dim() == 2:
        # One number for a pair, in place of one for each of its numbers.
        cos, sin = cos.repeat(1, 2), sin.repeat(1, 2)
    if cos.dim() != 2 or cos.shape != sin.shape or cos.shape[1] % 2:
        raise NotRecognised("its rotary angles have more than one dimension")
    return Angles(cos, sin, are_complex)
