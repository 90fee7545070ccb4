"""The products of a model that adapters may change, found by watching one forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
import re
from typing import Any

from torch import Tensor, nn

# Their inputs are the tokens that have chosen an expert.
_EXPERT = re.compile(r"\.experts?\.\d+\.")


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

    hooks = [
        module.register_forward_hook(partial(note, name))
        for name, module in model.named_modules()
        if _is_product(module) and not _EXPERT.search(name)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _is_product(module: nn.Module) -> bool:
    # transformers' Conv1D is a linear module whose weight lies the other way.
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
