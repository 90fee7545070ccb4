"""The formulas of a decoder's small modules, found by running them.

A norm's weight is found by normalizing ones, an activation by comparing it. So a variant
such as Gemma's norm, which adds one to its weight, needs no case of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..choice import NotRecognised


def find_norm(
    norm: nn.Module, size: int | None = None, device: torch.device | None = None
) -> Tensor:
    """Return the weight of a root mean square norm, (size,) float32.

    The mean square of ones is one, so a norm of ones returns its weight.

    Args:
      size: the weight's expected size; None is any.
      device: where a norm without a weight has one of ones; None refuses such norms.

    Raises:
      NotRecognised
    """
    weight = getattr(norm, "weight", None)
    if weight is None and size is not None and device is not None:
        weight = torch.ones(size, device=device)
    if not isinstance(weight, Tensor) or weight.dim() != 1:
        raise NotRecognised(f"{type(norm).__name__} has no weight of one dimension")
    if size is not None and len(weight) != size:
        raise NotRecognised(f"{type(norm).__name__} normalizes {len(weight)} numbers")
    epsilon = read_epsilon(norm)
    ones = torch.ones(len(weight), dtype=torch.float32, device=weight.device)
    found: Tensor = norm(ones).float() * (1 + epsilon) ** 0.5
    _check_norm(norm, found, epsilon)
    return found.contiguous()


def _check_norm(norm: nn.Module, weight: Tensor, epsilon: float) -> None:
    """Refuse norms of another kind, such as those that subtract the mean.

    Raises:
      NotRecognised
    """
    numbers = torch.linspace(-1, 3, len(weight), device=weight.device)
    expected = functional.rms_norm(numbers, numbers.shape, weight, epsilon)
    if not torch.allclose(norm(numbers).float(), expected, rtol=1e-2, atol=1e-2):
        raise NotRecognised(f"{type(norm).__name__} is no root mean square norm")


def read_epsilon(norm: nn.Module) -> float:
    """Return the number that a norm adds to the mean square.

    Raises:
      NotRecognised: it has none.
    """
    epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(epsilon, float):
        raise NotRecognised(f"{type(norm).__name__} has no epsilon")
    return epsilon


def find_optional_norm(
    module: Any, device: torch.device, size: int, *names: str
) -> Tensor | None:
    """Return the weight of a norm that a module may have; None if it has none.

    Args:
      device, size: as in find_norm.
    """
    norms = (getattr(module, name, None) for name in names)
    norm = next((each for each in norms if each is not None), None)
    return None if norm is None else find_norm(norm, size, device)


# They have an epsilon of their own: transformers gives them none.
_NORMS_OF_LATENTS = "q_a_layernorm", "kv_a_layernorm"


def find_epsilon(model: nn.Module) -> float:
    """Return the epsilon that all norms of a model share, but those of latents.

    Raises:
      NotRecognised
    """
    found = {
        getattr(module, "variance_epsilon", getattr(module, "eps", None))
        for name, module in model.named_modules()
        if "norm" in type(module).__name__.lower()
        and not name.endswith(_NORMS_OF_LATENTS)
    }
    if len(found) != 1:
        raise NotRecognised("its norms have different epsilons")
    epsilon = found.pop()
    assert epsilon is not None, "a norm without an epsilon is not recognised"
    return float(epsilon)


# In the order of native/activation.h.
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu": functional.gelu,
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
}
ACTIVATION_CODES = {name: code for code, name in enumerate(_ACTIVATIONS)}


def name_activation(functions: Iterable[Callable[[Tensor], Tensor]]) -> str:
    """Return the name of the activation that all layers share, of ACTIVATION_CODES.

    Args:
      functions: of the layers.

    Returns:
      the first name if there are none

    Raises:
      NotRecognised
    """
    points = torch.linspace(-8, 8, 257)
    functions = list(functions)
    if not functions:
        return next(iter(_ACTIVATIONS))
    names = set()
    for function in functions:
        values = function(points)
        names |= {
            name
            for name, known in _ACTIVATIONS.items()
            # The two forms of GELU are 5e-4 apart.
            if torch.allclose(values, known(points), rtol=0, atol=1e-5)
        }
    if len(names) != 1:
        raise NotRecognised(f"its activation is not one of {', '.join(_ACTIVATIONS)}")
    return names.pop()
