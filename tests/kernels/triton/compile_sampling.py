"""Compile the sampler's kernels for a GPU that need not be there.

    python compile_sampling.py CAPABILITY VOCABULARY

Prints the lines of compiling.py.
"""

from __future__ import annotations

import sys

from compiling import compile_for
import torch

from trioserve.kernels.triton.decodes import NewBlocks, take_tokens
from trioserve.kernels.triton.sampling import (
    Kept,
    choose_plain,
    choose_tokens,
    lower_repeated,
)


def main(capability: int, vocab_size: int) -> None:
    compile_for(capability)
    for num_rows in (1, 2, 3, 16):
        scores = torch.zeros(num_rows, vocab_size)
        settings = torch.zeros(num_rows, 7, dtype=torch.float64)
        choose_tokens(scores, settings, has_cut=True)
        # As rows.py sends them.
        places, rows = torch.zeros(2, num_rows, dtype=torch.int64)
        counts = torch.zeros(2, vocab_size, dtype=torch.int32)
        penalties = torch.zeros(3, num_rows)
        lower_repeated(scores, places, rows, counts, counts.bool(), penalties)
        # As a captured step calls them.
        slots, last = torch.zeros(2, 64, dtype=torch.int64)
        new = NewBlocks(table=last[:, None], places=slots, block_ids=slots)
        take_tokens(slots[:num_rows], slots, last, [new])
        kept = Kept(places=slots.int(), slots=slots, last_tokens=last)
        choose_plain(scores.bfloat16(), penalties[0], slots, kept)
        choose_tokens(scores.bfloat16(), settings, has_cut=True, kept=kept)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
