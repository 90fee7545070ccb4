"""The weights of experts, as adapters change them, and the check of the kernels that do.

Torch's operators would need the choice of a step on the host, and the weights in a form that the
kernels do not keep. So adapters of experts have kernels of their own, in graphs as all others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ....kernels.triton.adapted_pairs import PairChanges, lay_out_pairs
from ....kernels.triton.adapters import RANK_MULTIPLE, count_columns
from ....kernels.triton.experts import Choices, Experts, list_rows
from ....kernels.triton.matrices import Matrices
from ...self_check.compare import describe_failure, find_difference
from ..named_products import NamedProduct

# The slots of the tokens of the check; fewer if there are not enough experts for all.
_SLOTS = 1, 0, 1


# Each is itself alone, so that one can be looked up.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertProduct:
    """The first weights of the experts of a layer, or the second, as adapters change them.

    Args:
      modules: the product of each expert.
      num_chosen: experts of a token.
      order: as in Product, of the outputs of each expert
    """

    modules: tuple[NamedProduct, ...]
    experts: Experts
    is_first: bool
    num_chosen: int
    order: Tensor | None = None

    @property
    def weights(self) -> Matrices:
        return self.experts.first if self.is_first else self.experts.second


def find_expert_fault(
    product: ExpertProduct, dtype: torch.dtype, num_cores: int
) -> str | None:
    """Compare a change of experts with biases that do the same; None if they agree.

    It is a change of chance, as large as what the experts compute.
    """
    weights, num_ranks = product.weights, RANK_MULTIPLE + 1
    device, num_chosen = weights.codes.device, product.num_chosen
    is_first = product.is_first
    slots = torch.tensor(_SLOTS[: weights.num_experts // num_chosen], dtype=torch.int32)
    # Each pair has an expert of its own, whose biases are its change.
    num_pairs = len(slots) * num_chosen
    chance = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=chance)

    num_rows = len(slots) if is_first else num_pairs
    given = draw(num_rows, weights.num_inputs).to(dtype)
    a = draw(num_pairs, num_ranks, weights.num_inputs) / weights.num_inputs**0.5
    b = draw(num_pairs, weights.num_outputs, num_ranks) / num_ranks**0.5
    numbers = given.float().repeat_interleave(num_pairs // num_rows, dim=0)
    added = (b @ (a @ numbers[:, :, None]))[:, :, 0]
    added *= slots.repeat_interleave(num_chosen)[:, None]
    others = [None] * (weights.num_experts - num_pairs)
    change = lay_out_pairs([*zip(a, b), *others], None, dtype, device)
    line = torch.tensor(change.make_line(count_columns(1)))
    changes = PairChanges(
        table=torch.stack((torch.zeros_like(line), line)).to(device),
        slots=slots.to(device),
        width=change.num_ranks,
        num_cores=num_cores,
    )
    experts = torch.arange(num_pairs, dtype=torch.int32, device=device)
    choices = Choices(
        experts=experts.view(-1, num_chosen),
        weights=torch.ones(len(slots), num_chosen, device=device),
    )
    biased = _add_biases(product, added.to(device))
    for rows in list_rows(dtype):
        blocks = product.experts.group(choices, dtype.itemsize, rows)
        own = given.to(device), choices, blocks
        try:
            actual = product.experts.run_part(*own, changes, is_first=is_first)
            expected = biased.run_part(*own, is_first=is_first)
            fault = find_difference(expected.cpu(), actual.cpu(), dtype)
        except Exception as error:
            fault = describe_failure(error)
        if fault is not None:
            return fault
    return None


def _add_biases(product: ExpertProduct, added: Tensor) -> Experts:
    """Return experts that add numbers to the products of the first of them."""
    experts, weights = product.experts, product.weights
    shape = weights.num_experts, weights.num_outputs
    biases = torch.zeros(shape, device=added.device)
    own = experts.first_bias if product.is_first else experts.second_bias
    if own is not None:
        biases += own
    biases[: len(added)] += added
    if product.is_first:
        return replace(experts, first_bias=biases)
    return replace(experts, second_bias=biases)
