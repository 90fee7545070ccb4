"""Compile the sampler's kernels for a GPU that need not be there.

    python compile_sampling.py CAPABILITY VOCABULARY

Prints what compiling.py says.
"""

from __future__ import annotations

import sys

from compiling import compile_for
import torch

from trioserve.model.triton.sampling import choose_tokens, lower_repeated


def main(capability: int, vocab_size: int) -> None:
    compile_for(capability)
    scores = torch.zeros(2, vocab_size)
    settings, limits = torch.zeros(5, 2, dtype=torch.float64), torch.zeros(2)
    choose_tokens(scores, settings, limits, has_cut=True)
    places = torch.zeros(2, dtype=torch.int64)
    counts = torch.zeros(2, vocab_size, dtype=torch.int32)
    penalties = torch.zeros(3, 2)
    lower_repeated(scores, places, places, counts, counts.bool(), penalties)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
