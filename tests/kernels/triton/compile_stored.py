"""Compile the kernels of weights in fewer bits for a GPU that need not be there.

    python compile_stored.py CAPABILITY DTYPE NUM_TOKENS...

Prints the lines of compiling.py.
"""

from __future__ import annotations

import sys

from compiling import NUM_CORES, compile_for
import torch

from trioserve.kernels.triton.products import multiply_stored, restore_stored
from trioserve.kernels.triton.stored import StoredWeights

NUM_OUTPUTS, NUM_INPUTS = 256, 4096

# Bits, inputs of a group, type of scales, and of zeros.
FORMATS = {
    "int4": [(4, 128, torch.float16, torch.uint8), (4, 32, torch.bfloat16, None)],
    "int8": [(8, 0, torch.bfloat16, None), (8, 64, torch.float16, torch.int16)],
    "fp8": [(8, 128, torch.float32, None), (8, 0, torch.float32, None)],
    "mxfp4": [(4, 32, torch.uint8, None)],
}


def main(capability: int, dtype: torch.dtype, *counts: int) -> None:
    compile_for(capability)
    for name, kinds in FORMATS.items():
        for bits, group, scale_type, zero_type in kinds:
            shape = NUM_OUTPUTS, NUM_INPUTS // group if group else 1
            signed = torch.int8 if name == "int8" else torch.uint8
            stored = StoredWeights(
                format=name,
                codes=torch.zeros(NUM_OUTPUTS, NUM_INPUTS * bits // 8, dtype=signed),
                scales=torch.zeros(shape, dtype=scale_type),
                zeros=(
                    None if zero_type is None else torch.zeros(shape, dtype=zero_type)
                ),
                group=group,
                num_inputs=NUM_INPUTS,
            )
            for num_tokens in counts:
                given = torch.zeros(num_tokens, NUM_INPUTS, dtype=dtype)
                multiply_stored(given, stored, given[0, :NUM_OUTPUTS], NUM_CORES)
            restore_stored(stored, torch.zeros(stored.shape, dtype=dtype))


if __name__ == "__main__":
    capability, dtype, *counts = sys.argv[1:]
    main(int(capability), getattr(torch, dtype), *map(int, counts))
