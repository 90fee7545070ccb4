"""The products of a decoder, found among the modules of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..choice import NotRecognised
from ..stored_weights import StoredLinear


def get_part(module: Any, *names: str) -> Any:
    """Return an attribute of a module that has one of several names.

    Raises:
      NotRecognised: it has none.
    """
    for name in names:
        found = getattr(module, name, None)
        if found is not None:
            return found
    raise NotRecognised(f"{type(module).__name__} has no {' or '.join(names)}")


def get_final_norm(body: nn.Module) -> nn.Module:
    """Return the norm behind a model's layers.

    Raises:
      NotRecognised: it has none.
    """
    norm: nn.Module = get_part(
        body, "norm", "embedding_norm", "final_layernorm", "norm_f"
    )
    return norm


def find_products(module: Any, *choices: tuple[str, ...]) -> tuple[nn.Linear, ...]:
    """Return the products that have the first of several choices of names.

    Raises:
      NotRecognised
    """
    for names in choices:
        if all(hasattr(module, name) for name in names):
            return tuple(check_linear(getattr(module, name), name) for name in names)
    raise NotRecognised(f"{type(module).__name__} has none of {choices}")


def check_linear(module: object, name: str) -> nn.Linear:
    """Return a module that does nothing but multiply, and add a bias.

    Raises:
      NotRecognised: it is another one; subclasses may do more.
    """
    if isinstance(module, StoredLinear):
        return module
    if type(module) is not nn.Linear:
        raise NotRecognised(f"{name} is a {type(module).__name__}")
    return module


def check_shape(
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

    Raises:
      NotRecognised
    """
    if (
        sum(product.out_features for product in products) != num_outputs
        or any(product.in_features != num_inputs for product in products)
        or any(product.weight.dtype != dtype for product in products)
        or any(product.bias is not None and not has_bias for product in products)
    ):
        raise NotRecognised("a product has an unexpected shape, type or bias")
