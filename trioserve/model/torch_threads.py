"""The threads of PyTorch's own operations, beside those of the native kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let PyTorch compute with so many threads.

    After each operation that it spreads over threads they spin for some milliseconds, to
    be there for the next one. Around the native kernels they took half of the second core
    (35 % of all cycles of a step of one sequence), so there PyTorch gets one thread, which
    does not wait for others.

    OpenMP keeps the number for each thread, so other threads of the process keep theirs.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
