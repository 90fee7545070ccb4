"""The products of a model that adapters may change, found by watching one forward pass.

The weight of all experts of a layer is one parameter, and each expert has a product of its own:
"model.layers.0.mlp.experts.3.down_proj".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
import re
from typing import Any

import torch
from torch import Tensor, nn

# Their inputs are the tokens that have chosen an expert.
_EXPERT = re.compile(r"\.experts?\.\d+\.")

_FUSED = re.compile(r"(.+\.experts)\.(\d+)\.(\w+)")
_NUMBERS = (torch.float32, torch.float16, torch.bfloat16)


def name_expert(experts: str, expert: int, weight: str) -> str:
    """Return the name of the product of one expert.

    Args:
      experts: the module's name.
      weight: of all experts, a parameter of the module.
    """
    return f"{experts}.{expert}.{weight}"


def split_expert(name: str) -> tuple[str, int, str] | None:
    """Return the arguments of name_expert; None for other products."""
    found = _FUSED.fullmatch(name)
    return None if found is None else (found[1], int(found[2]), found[3])


def list_weights(experts: Any) -> tuple[str, str]:
    """Return the names of the weights of experts that transformers has fused."""
    return "gate_up_proj" if experts.has_gate else "up_proj", "down_proj"


@contextmanager
def recording_products(
    model: nn.Module, num_tokens: int
) -> Iterator[dict[str, tuple[int, int]]]:
    """Record the products that run inside the block, with all tokens in order.

    A model may use the weight of a product in another way than by running its module, and
    then a change of its outputs would be lost.

    Yields:
      (num_outputs, num_inputs), by the names of modules
    """
    found: dict[str, tuple[int, int]] = {}

    def note(name: str, module: nn.Module, given: tuple[Any, ...], out: Any) -> None:
        # A router of experts may be a linear module that returns several things.
        if not (given and isinstance(out, Tensor)):
            return
        if given[0].shape[:-1].numel() == num_tokens:
            found[name] = (out.shape[-1], given[0].shape[-1])

    def note_experts(name: str, module: Any, given: tuple[Any, ...], out: Any) -> None:
        if len(given) != 3 or given[0].shape != (num_tokens, out.shape[-1]):
            return
        for weight in list_weights(module):
            shape = getattr(module, weight).shape
            outputs, inputs = reversed(shape[1:]) if module.is_transposed else shape[1:]
            for expert in range(shape[0]):
                found[name_expert(name, expert, weight)] = (outputs, inputs)

    hooks = [
        module.register_forward_hook(partial(note, name))
        for name, module in model.named_modules()
        if _is_product(module) and not _EXPERT.search(name)
    ]

    def note_router(name: str, module: Any, given: tuple[Any, ...], out: Any) -> None:
        num_experts, size = module.weight.shape
        # Weights of all tokens; some routers read token ids, too.
        others = [each.shape == (num_experts,) for each in given[1:]]
        rows = [len(each) for each in out] if isinstance(out, tuple) else []
        if all(others) and given[0].shape[-1] == size and rows == [num_tokens] * 3:
            found[name] = num_experts, size

    hooks += [
        module.register_forward_hook(partial(note_router, name))
        for name, module in model.named_modules()
        if name.endswith((".gate", ".router")) and is_router(module)
    ]
    hooks += [
        module.register_forward_hook(partial(note_experts, name))
        for name, module in model.named_modules()
        if name.endswith(".experts") and _are_fused(module)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _is_product(module: nn.Module) -> bool:
    # transformers' Conv1D is a linear module whose weight lies the other way.
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def is_router(module: nn.Module) -> bool:
    """Return whether a module may choose experts by the product of a weight of its own."""
    weight = getattr(module, "weight", None)
    return (
        isinstance(weight, nn.Parameter)
        and weight.dim() == 2
        and not _is_product(module)
    )


def _are_fused(module: Any) -> bool:
    # What transformers' use_experts_implementation gives a class.
    if not (hasattr(module, "has_gate") and hasattr(module, "is_transposed")):
        return False
    weights = [getattr(module, name, None) for name in list_weights(module)]
    return all(
        isinstance(each, nn.Parameter) and each.dim() == 3 and each.dtype in _NUMBERS
        for each in weights
    )
