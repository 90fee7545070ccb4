"""Compile the kernels of experts for a GPU that need not be there.

    python compile_experts.py CAPABILITY DTYPE NUM_EXPERTS HIDDEN INNER

Prints the lines of compiling.py.
"""

from __future__ import annotations

import sys

from compiling import compile_for
import torch

from trioserve.kernels.triton.experts import Experts, Router, sum_outputs

NUM_CHOSEN = 4


def main(
    capability: int, dtype: torch.dtype, num_experts: int, hidden: int, inner: int
) -> None:
    compile_for(capability)
    factors = torch.zeros(num_experts)
    for num_groups in (1, 8):
        router = Router(
            num_experts=num_experts,
            num_chosen=NUM_CHOSEN,
            renormalizes=True,
            num_groups=num_groups,
            num_chosen_groups=num_groups // 2 or 1,
            num_ranked=2,
            has_sigmoid=num_groups > 1,
            scale=1.0,
            biases=factors,
            choice_bias=factors if num_groups > 1 else None,
            expert_scales=None,
        )
        slots = torch.zeros(3, dtype=torch.int64)
        router.choose(torch.zeros(3, num_experts, dtype=dtype), slots)
    # An expansion, because no kernel reads them.
    first = torch.zeros((), dtype=dtype).expand(num_experts, 2 * inner, hidden)
    for activation in ("silu", "clamped"):
        has_biases = activation == "clamped"
        experts = Experts(
            first=first,
            first_bias=first[:, :, 0] if has_biases else None,
            second=first[:1, :1, :1].expand(num_experts, hidden, inner),
            second_bias=first[:, :hidden, 0] if has_biases else None,
            has_gate=True,
            activation=activation,
            slope=1.702,
            limit=7.0,
        )
        experts.compile()
    parts = torch.zeros(2, NUM_CHOSEN, hidden, dtype=dtype)
    sum_outputs(parts, parts[:, 0], parts[:, 0, :1])


if __name__ == "__main__":
    capability, dtype, *sizes = sys.argv[1:]
    main(int(capability), getattr(torch, dtype), *map(int, sizes))
