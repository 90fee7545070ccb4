"""The threads of PyTorch's own operations, beside the threads of the native kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let PyTorch compute with so many threads.

    After each operation that it spreads over threads they spin, to be there for the next
    one (model/__init__.py bounds how long). Beside the native kernels this took 35 % of
    all cycles of a step of one sequence, on the core that the kernels' second thread
    needs. There PyTorch gets one thread, which does not wait for others.

    OpenMP keeps the number for each thread, so other threads of the process keep theirs.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
