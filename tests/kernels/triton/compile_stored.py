"""Compile the kernels of weights in fewer bits for a GPU that need not be there.

    python compile_stored.py CAPABILITY DTYPE NUM_TOKENS...

Prints the lines of compiling.py.
"""

from __future__ import annotations

import sys

from compiling import NUM_CORES, compile_for
import torch

from trioserve.kernels.stored import StoredWeights
from trioserve.kernels.triton.products import (
    Gates,
    make_splits,
    multiply_plain,
    multiply_stored,
    restore_stored,
)
from trioserve.kernels.triton.round_inputs import round_to_codes, round_tokens

NUM_OUTPUTS, NUM_INPUTS = 256, 4096

# Bits, inputs of a group, type of scales, and are there zeros?
FORMATS = {
    "int4": [(4, 128, torch.float16, True), (4, 32, torch.bfloat16, False)],
    "int8": [(8, 0, torch.bfloat16, False), (8, 64, torch.float16, True)],
    "fp8": [(8, 128, torch.float32, False), (8, 0, torch.float32, False)],
    "mxfp4": [(4, 32, torch.uint8, False)],
}


def main(capability: int, dtype: torch.dtype, *counts: int) -> None:
    compile_for(capability)
    splits = make_splits(NUM_OUTPUTS, NUM_CORES, torch.device("cpu"))
    if dtype != torch.float32:
        given = torch.zeros(1, NUM_INPUTS, dtype=dtype)
        weight = torch.zeros(NUM_OUTPUTS, NUM_INPUTS, dtype=dtype)
        for gates in (None, Gates("silu")):
            multiply_plain(given, weight, None, splits, gates)
    for name, kinds in FORMATS.items():
        for bits, group, scale_type, has_zeros in kinds:
            shape = NUM_OUTPUTS, NUM_INPUTS // group if group else 1
            length = NUM_INPUTS * bits // 32
            stored = StoredWeights(
                format=name,
                codes=torch.zeros(NUM_OUTPUTS, length, dtype=torch.int32),
                scales=torch.zeros(shape, dtype=scale_type),
                zeros=torch.zeros(shape, dtype=scale_type) if has_zeros else None,
                group=group,
                num_inputs=NUM_INPUTS,
            )
            for num_tokens in counts:
                given = torch.zeros(num_tokens, NUM_INPUTS, dtype=dtype)
                for gates in (None, Gates("silu")):
                    multiply_stored(
                        given, stored, given[0, :NUM_OUTPUTS], splits, gates
                    )
            restore_stored(stored, torch.zeros(stored.shape, dtype=dtype))
    for num_inputs in (2048, 14336):
        given = torch.zeros(3, num_inputs, dtype=torch.bfloat16)
        for group in (0, 128):
            round_tokens(given, group)
            round_to_codes(given, num_inputs, group)


if __name__ == "__main__":
    capability, dtype, *counts = sys.argv[1:]
    main(int(capability), getattr(torch, dtype), *map(int, counts))
