"""Sums and other exchanges of shards on one machine's CPU, over memory that they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
import mmap
import os
import secrets
import stat
from typing import Any

import torch
from torch import Tensor, distributed

from ...errors import shorten_message
from ...kernels.exchange import ExchangeLate, SharedExchange, count_exchange_bytes
from ...kernels.library import Library, NoKernels, open_library
from ...types.stage_place import Shard
from ..shards.group import StageLost
from .collectives import DistributedCollectives

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

    Raises:
      StageLost: a process did not come.
    """
    size = count_exchange_bytes(shard.count)
    try:
        with ExitStack() as closing:
            memory_fd = _open_file(store, key, shard, size)
            if memory_fd is not None:
                # The first process keeps it open until the others have opened it.
                closing.callback(os.close, memory_fd)
            library = _find_library()
            can_share = torch.tensor([None not in (memory_fd, library)]).int()
            distributed.all_reduce(can_share, distributed.ReduceOp.MIN, group=group)
            if memory_fd is None or library is None or not can_share:
                return None
            memory = mmap.mmap(memory_fd, size)
    except RuntimeError as error:
        raise StageLost(f"shards did not connect: {shorten_message(error)}") from error
    return SharedExchange(
        library,
        memory,
        index=shard.index,
        count=shard.count,
        timeout_seconds=timeout_seconds,
    )


def _find_library() -> Library | None:
    try:
        return open_library()
    except NoKernels:
        return None


def _open_file(store: Any, key: str, shard: Shard, size: int) -> int | None:
    """Return a descriptor of memory that all processes open; None if this one cannot.

    A token is behind the memory, `size` bytes from its begin.
    """
    if shard.is_first:
        memory_fd = os.memfd_create("trioserve-shards", os.MFD_CLOEXEC)
        os.ftruncate(memory_fd, size + _TOKEN_BYTES)
        token = secrets.token_bytes(_TOKEN_BYTES)
        os.pwrite(memory_fd, token, size)
        store.set(key, f"/proc/{os.getpid()}/fd/{memory_fd}\n{token.hex()}")
        return memory_fd
    path, token_text = store.get(key).decode().split("\n")
    return open_with_token(path, bytes.fromhex(token_text), size)


def open_with_token(path: str, token: bytes, size: int) -> int | None:
    """Open a path of another process.

    That process may be on another machine or in another container. There, the path may
    name nothing, or anything: a file, a pipe, a terminal.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        memory_fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    if os.pread(memory_fd, _TOKEN_BYTES, size) == token:
        return memory_fd
    os.close(memory_fd)
    return None
