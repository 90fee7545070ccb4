"""Sums and other exchanges of shards, over torch.distributed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from ...errors import shorten_message
from ..shards.group import StageLost

# One process may read weights from a slower disk than the others. A process that dies ends all.
_LOADING_TIMEOUT = timedelta(days=1)


class DistributedCollectives:
    """The Collectives of a process group.

    Args:
      group: torch's group of the processes.
      barrier: a group of the same processes over gloo, which tells which one is missing.
      first: rank of its first process.
      size: number of its processes.
    """

    def __init__(self, group: Any, barrier: Any, *, first: int, size: int) -> None:
        self._group = group
        self._barrier = barrier
        self._first = first
        self._size = size

    def wait_for_all(self) -> None:
        with _telling_loss():
            distributed.monitored_barrier(self._barrier, timeout=_LOADING_TIMEOUT)

    def sum(self, tensor: Tensor) -> None:
        # gloo reads a view as if its numbers lay side by side.
        numbers = tensor.contiguous()
        with _telling_loss():
            distributed.all_reduce(numbers, group=self._group)
        if numbers is not tensor:
            tensor.copy_(numbers)

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self._size)]
        with _telling_loss():
            distributed.all_gather(parts, tensor, group=self._group)
        return parts

    def broadcast(self, tensor: Tensor) -> None:
        with _telling_loss():
            distributed.broadcast(tensor, self._first, group=self._group)


@contextmanager
def _telling_loss() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        # torch.distributed has no class of its own for a lost connection.
        raise StageLost(
            f"a process that shares the layers is lost: {shorten_message(error)}"
        ) from error
