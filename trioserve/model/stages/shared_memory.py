"""Sums and other exchanges of shards on one machine's CPU, over memory that they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
import mmap
import os
import secrets
from typing import Any

import torch
from torch import Tensor, distributed

from ...kernels.exchange import ExchangeLate, SharedExchange, count_exchange_bytes
from ...kernels.library import Library, NoKernels, open_library
from ...types.stage_place import Shard
from .collectives import DistributedCollectives
from .links import StageLost

_TOKEN_BYTES = 16


class SharedMemoryCollectives:
    """The Collectives of processes that share memory.

    Args:
      exchange: with the others.
      slow: for waits that may be long.
    """

    def __init__(
        self, exchange: SharedExchange, slow: DistributedCollectives, count: int
    ) -> None:
        self._exchange = exchange
        self._slow = slow
        self._count = count

    def wait_for_all(self) -> None:
        self._slow.wait_for_all()

    def sum(self, tensor: Tensor) -> None:
        # In float32, whatever the type: sums of parts should round once.
        is_ready = tensor.dtype == torch.float32 and tensor.is_contiguous()
        numbers = tensor if is_ready else tensor.float().contiguous()
        with _telling_loss():
            self._exchange.sum(numbers.data_ptr(), numbers.numel())
        if not is_ready:
            tensor.copy_(numbers)

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        tensor = tensor.contiguous()
        parts = tensor.new_empty((self._count, *tensor.shape))
        with _telling_loss():
            self._exchange.gather(tensor.data_ptr(), tensor.nbytes, parts.data_ptr())
        return parts.unbind()

    def broadcast(self, tensor: Tensor) -> None:
        tensor.copy_(self.gather(tensor)[0])


@contextmanager
def _telling_loss() -> Iterator[None]:
    try:
        yield
    except ExchangeLate:
        raise StageLost("a process that shares the layers is silent") from None


def share_memory(
    store: Any, key: str, group: Any, shard: Shard, timeout_seconds: float
) -> SharedExchange | None:
    """Let the processes of a group share memory; None if one of them cannot.

    Args:
      store: of torch.distributed, that all processes use.
      key: of this group in it.
      group: torch's group of the processes, over gloo.
    """
    memory = _open(store, key, shard)
    try:
        library: Library | None = open_library()
    except NoKernels:
        library = None
    can_share = torch.tensor([memory is not None and library is not None]).int()
    distributed.all_reduce(can_share, distributed.ReduceOp.MIN, group=group)
    if memory is None or library is None or not can_share:
        return None
    return SharedExchange(
        library,
        memory,
        index=shard.index,
        count=shard.count,
        timeout_seconds=timeout_seconds,
    )


def _open(store: Any, key: str, shard: Shard) -> mmap.mmap | None:
    size = count_exchange_bytes(shard.count)
    if shard.is_first:
        memory_fd = os.memfd_create("trioserve-shards", os.MFD_CLOEXEC)
        os.ftruncate(memory_fd, size + _TOKEN_BYTES)
        token = secrets.token_bytes(_TOKEN_BYTES)
        os.pwrite(memory_fd, token, size)
        store.set(key, f"/proc/{os.getpid()}/fd/{memory_fd}\n{token.hex()}")
    else:
        path, token_text = store.get(key).decode().split("\n")
        try:
            memory_fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            # It is on another machine, or in another container.
            return None
        token = bytes.fromhex(token_text)
    # The same path may name something else here.
    if os.pread(memory_fd, _TOKEN_BYTES, size) != token:
        os.close(memory_fd)
        return None
    # The first process keeps it open: the others have yet to come.
    memory = mmap.mmap(memory_fd, size)
    if not shard.is_first:
        os.close(memory_fd)
    return memory
