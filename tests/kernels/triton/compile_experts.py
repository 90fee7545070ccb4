"""Compile the kernels of experts for a GPU that need not be there.

    python compile_experts.py CAPABILITY DTYPE NUM_EXPERTS HIDDEN INNER

Prints the lines of compiling.py.
"""

from __future__ import annotations

import sys

from compiling import NUM_CORES, compile_for
import torch

from trioserve.kernels.triton.adapted_pairs import PairChanges
from trioserve.kernels.triton.adapters import count_columns
from trioserve.kernels.triton.experts import (
    Choices,
    Experts,
    Router,
    list_rows,
    sum_outputs,
)
from trioserve.kernels.triton.matrices import Matrices

NUM_CHOSEN = 4


def make(
    format: str, dtype: torch.dtype, num_experts: int, num_outputs: int, num_inputs: int
) -> Matrices:
    """Make weights without memory, which no kernel reads."""
    shape = num_experts, num_outputs
    if format == "plain":
        numbers = torch.zeros((), dtype=dtype)
        return Matrices(codes=numbers.expand(*shape, num_inputs), num_inputs=num_inputs)
    length = -(-num_inputs // 128) * 128
    group = 0 if format == "fp8" else 32
    word = torch.zeros((), dtype=torch.int32)
    scale = torch.zeros((), dtype=torch.uint8 if format == "mxfp4" else dtype)
    scale = scale.expand(num_experts * num_outputs, length // group if group else 1)
    return Matrices(
        codes=word.expand(*shape, length // (4 if format == "fp8" else 8)),
        num_inputs=num_inputs,
        format=format,
        scales=scale,
        zeros=scale if format == "int4" else None,
        group=group,
    )


def compile_changes(experts: Experts, dtype: torch.dtype, hidden: int) -> None:
    """Compile the kernels for steps with adapters."""
    num_tokens = 2
    changes = PairChanges(
        table=torch.zeros(2, 3, count_columns(3), dtype=torch.int64)[:, 1],
        slots=torch.zeros(num_tokens, dtype=torch.int32),
        width=256,
        num_cores=NUM_CORES,
    )
    shape = num_tokens, NUM_CHOSEN
    choices = Choices(
        experts=torch.zeros(shape, dtype=torch.int32), weights=torch.zeros(shape)
    )
    given = torch.zeros(num_tokens, hidden, dtype=dtype)
    for rows in list_rows(dtype):
        experts.run(given, choices, rows, (changes, changes))


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
    for activation, format in (
        ("silu", "plain"),
        ("clamped", "mxfp4"),
        ("silu", "int4"),
        ("silu", "fp8"),
    ):
        biases = torch.zeros(2, dtype=dtype) if activation == "clamped" else None
        experts = Experts(
            first=make(format, dtype, num_experts, 2 * inner, hidden),
            first_bias=biases,
            second=make(format, dtype, num_experts, hidden, inner),
            second_bias=biases,
            has_gate=True,
            activation=activation,
            slope=1.702,
            limit=7.0,
        )
        experts.compile(dtype, NUM_CHOSEN)
        # The simplest loop, and the one with the most registers.
        if format in ("plain", "mxfp4"):
            compile_changes(experts, dtype, hidden)
    parts = torch.zeros(2, NUM_CHOSEN, hidden, dtype=dtype)
    sum_outputs(parts, parts[:, 0], parts[:, 0, :1])


if __name__ == "__main__":
    capability, dtype, *sizes = sys.argv[1:]
    main(int(capability), getattr(torch, dtype), *map(int, sizes))
