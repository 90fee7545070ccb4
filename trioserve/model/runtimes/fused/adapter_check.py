"""The check of the kernels of adapters, on the device that runs them.

A kernel that fails in a step would end the engine, so each kind of product is tried before its
first adapter is used. This compiles the kernels, too, so no step waits for a compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ....kernels.triton.tiles import AdapterTiles, count_adapter_tokens
from ...adapters.description import LowRank
from ...self_check.compare import describe_failure, find_difference
from .products import Product

# Fewer than a tile has.
_NUM_TOKENS = 3

# Changes the outputs of a product, in place, by the slots of tiles.
ChangeOutputs = Callable[[Tensor, Tensor, AdapterTiles], None]


def find_fault(
    product: Product, changes: Sequence[LowRank | None], change: ChangeOutputs
) -> str | None:
    """Compare the change of a product with torch's operators; None if they agree.

    Args:
      changes: of its modules.
      change: has them in slot 1.
    """
    weight = product.weight
    chance = torch.Generator().manual_seed(0)
    given = torch.randn(_NUM_TOKENS, weight.shape[1], generator=chance)
    own = given.to(weight.device, weight.dtype)
    expected = _compute(product, changes, own.cpu().float())
    for has_chunks in (False, True):
        tiles = AdapterTiles(
            numbers=torch.tensor(
                [[0, _NUM_TOKENS, 1]], dtype=torch.int32, device=weight.device
            ),
            num_tokens=count_adapter_tokens(has_chunks),
        )
        # As if the product alone gave nothing: no rounding hides the change.
        output = own.new_zeros(_NUM_TOKENS, weight.shape[0])
        if product.bias is not None:
            output += product.bias
        try:
            change(own, output, tiles)
            fault = find_difference(expected, output.cpu(), weight.dtype)
        except Exception as error:
            fault = describe_failure(error)
        if fault is not None:
            return fault
    return None


def _compute(
    product: Product, changes: Sequence[LowRank | None], given: Tensor
) -> Tensor:
    """Return the outputs of the change alone, (num_tokens, num_outputs) float32."""
    added, scales = [], []
    for module, change in zip(product.modules, changes):
        scale = None if change is None else change.output_scale
        scales.append(torch.ones(module.out_features) if scale is None else scale)
        added.append(
            torch.zeros(len(given), module.out_features)
            if change is None
            else given @ change.a.T @ change.b.T
        )
    outputs = (torch.cat(scales) * torch.cat(added, dim=1))[:, product.get_order()]
    return outputs if product.bias is None else outputs + product.bias.cpu().float()
