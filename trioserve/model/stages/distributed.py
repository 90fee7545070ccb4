"""Channels between stages that are processes, over torch.distributed.

Every pair of neighbours has a process group, and so have the first and the last stage,
for tokens. NCCL runs all operations of a communicator in their order, so in one group,
hidden states in one direction and tokens in the other would wait for each other. A group
of two costs gloo one connection.

Nothing is read from the environment: the caller passes the address of the rendezvous.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from ...errors import shorten_message
from .links import Channels, StageLost
from .stage import LoadedStage

# A closed connection shows at once that a stage is gone. This limit is for a stage that is
# alive and silent, so its longest step must be shorter, with images and the first use of
# kernels. torch's own limit for NCCL's collectives, 10 minutes, is too long for clients
# that wait. The right value was not measured.
DEFAULT_TIMEOUT_SECONDS = 300.0


class DistributedChannel:
    """A Channel to or from another process.

    Args:
      group: of the two processes alone.
      peer: rank of the other process.
      device: the device of the tensors.
      max_unsent: number of sends that may be unfinished. A plan is launched only after the
        tensor that was sent so many plans earlier has been received.
    """

    def __init__(
        self, group: Any, peer: int, device: torch.device, max_unsent: int
    ) -> None:
        self._group = group
        self._peer = peer
        self._device = device
        self._max_unsent = max_unsent
        # Unfinished sends with their tensors, which must live until they are sent.
        self._unsent: deque[tuple[Any, Tensor]] = deque()

    def send(self, tensor: Tensor) -> None:
        tensor = tensor.contiguous()
        with _telling_loss(self._peer):
            work = distributed.isend(tensor, self._peer, self._group)
            self._unsent.append((work, tensor))
            while len(self._unsent) > self._max_unsent:
                self._unsent.popleft()[0].wait()

    def expect(self, shape: tuple[int, ...], dtype: torch.dtype) -> _Posted:
        tensor = torch.empty(shape, dtype=dtype, device=self._device)
        with _telling_loss(self._peer):
            work = distributed.irecv(tensor, self._peer, self._group)
        return _Posted(work=work, tensor=tensor, peer=self._peer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Posted:
    """An expected message.

    Args:
      work: torch's handle.
      peer: rank of the sender.
    """

    work: Any
    tensor: Tensor
    peer: int

    def wait(self) -> Tensor:
        with _telling_loss(self.peer):
            self.work.wait()
        return self.tensor


@contextmanager
def _telling_loss(peer: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        # torch.distributed has no class of its own for a lost connection.
        raise StageLost(f"stage {peer} is lost: {shorten_message(error)}") from error


@contextmanager
def open_channels(
    stage: LoadedStage,
    *,
    host: str,
    port: int,
    listen_fd: int | None = None,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> Iterator[Channels]:
    """Connect a stage to all other stages, and wait until all have connected.

    Only one at a time in a process, because torch.distributed has one default group.

    Args:
      host, port: the address at which the first stage listens.
      listen_fd: at the first stage, a socket that listens there already.
      timeout_seconds: for the others to connect, and later for each of their messages.

    Raises:
      StageLost: a stage did not come.
    """
    partition = stage.partition
    timeout = timedelta(seconds=timeout_seconds)
    try:
        store = distributed.TCPStore(  # type: ignore[attr-defined]
            host,
            port,
            partition.num_stages,
            is_master=partition.is_first,
            timeout=timeout,
            master_listen_fd=listen_fd,
        )
        distributed.init_process_group(
            # Only needed to make the groups below.
            "gloo",
            store=store,
            rank=partition.stage,
            world_size=partition.num_stages,
            timeout=timeout,
        )
    except RuntimeError as error:
        raise StageLost(f"stages did not connect: {shorten_message(error)}") from error
    try:
        yield _make_channels(stage, timeout)
    finally:
        distributed.destroy_process_group()


def _make_channels(stage: LoadedStage, timeout: timedelta) -> Channels:
    partition, last = stage.partition, stage.partition.num_stages - 1
    pairs = [(left, left + 1) for left in range(last)]
    backend = "nccl" if stage.device.type == "cuda" else "gloo"
    # Every process takes part in making every group, in the same order.
    try:
        groups = [
            distributed.new_group(list(pair), timeout=timeout, backend=backend)
            for pair in (*pairs, (0, last))
        ]
    except RuntimeError as error:
        raise StageLost(f"stages did not connect: {shorten_message(error)}") from error
    by_pair = dict(zip(pairs, groups))

    def open_channel(group: Any, peer: int) -> DistributedChannel:
        # One more than the plans in flight: the oldest message has always arrived.
        return DistributedChannel(group, peer, stage.device, partition.num_stages + 2)

    me = partition.stage
    tokens = None
    if partition.is_first or partition.is_last:
        tokens = open_channel(groups[-1], last if partition.is_first else 0)
    return Channels(
        before=(
            None if partition.is_first else open_channel(by_pair[me - 1, me], me - 1)
        ),
        after=None if partition.is_last else open_channel(by_pair[me, me + 1], me + 1),
        tokens=tokens,
    )
