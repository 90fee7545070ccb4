"""KV caches and states that are written, as a server's are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch

# The names under which the modules and the kernels allocate them.
_ALLOCATE = (
    "trioserve.model.attention.kv_cache.make_zeros",
    "trioserve.model.runtimes.native.decoder.make_zeros",
)


@contextmanager
def write_caches() -> Iterator[None]:
    """Let models that are opened inside the block have caches that are written.

    Memory that nobody has touched is one page of zeros, which is read too fast.
    """
    with ExitStack() as stack:
        for name in _ALLOCATE:
            stack.enter_context(patch(name, _make_written))
        yield


def _make_written(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return torch.full(shape, 0.01, dtype=dtype, device=device)
