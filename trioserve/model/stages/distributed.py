"""Channels between processes that share a model, over torch.distributed.

Every pair of neighbours has a process group, and so have the first and the last stage,
for tokens. NCCL runs all operations of a communicator in their order, so in one group,
hidden states in one direction and tokens in the other would wait for each other. A group
of two costs gloo one connection.

The shards of a stage are one more group, for their sums. Shards do not cross in a pipeline: all
shards of a stage have the same hidden states, so each sends its own to the shard of its number
in the next stage.

Nothing is read from the environment: the caller passes the address of the rendezvous.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from ...errors import shorten_message
from ...types.stage_place import StagePlace
from ..shards.group import StageLost, TensorGroup
from .collectives import DistributedCollectives
from .links import Channels
from .shared_memory import SharedMemoryCollectives, share_memory

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
        raise StageLost(f"rank {peer} is lost: {shorten_message(error)}") from error


@contextmanager
def open_channels(
    place: StagePlace,
    device: torch.device,
    *,
    host: str,
    port: int,
    listen_fd: int | None = None,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> Iterator[Channels]:
    """Connect a process to all others of its model, and wait until all have connected.

    Only one at a time in a process, because torch.distributed has one default group.

    Args:
      place: of this process.
      device: of the tensors.
      host, port: the address at which the process of rank 0 listens.
      listen_fd: in that process, a socket that listens there already.
      timeout_seconds: for the others to connect, and later for each of their messages.

    Raises:
      StageLost: a process did not come.
    """
    timeout = timedelta(seconds=timeout_seconds)
    try:
        store = distributed.TCPStore(  # type: ignore[attr-defined]
            host,
            port,
            place.world_size,
            is_master=place.rank == 0,
            timeout=timeout,
            master_listen_fd=listen_fd,
        )
        distributed.init_process_group(
            # Only needed to make the groups below.
            "gloo",
            store=store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=timeout,
        )
    except RuntimeError as error:
        raise StageLost(f"stages did not connect: {shorten_message(error)}") from error
    try:
        groups = _Groups("nccl" if device.type == "cuda" else "gloo", timeout)
        channels = _make_channels(place, device, groups)
        shards = _connect_shards(place, device, groups, store, timeout_seconds)
        yield replace(channels, shards=shards)
    finally:
        distributed.destroy_process_group()


class _Groups:
    """Makes groups of processes.

    Every process takes part in making every group, in the same order.
    """

    def __init__(self, backend: str, timeout: timedelta) -> None:
        self._backend = backend
        self._timeout = timeout

    def make(self, ranks: list[int], backend: str | None = None) -> Any:
        try:
            return distributed.new_group(
                ranks, timeout=self._timeout, backend=backend or self._backend
            )
        except RuntimeError as error:
            raise StageLost(
                f"stages did not connect: {shorten_message(error)}"
            ) from error


def _make_channels(
    place: StagePlace, device: torch.device, groups: _Groups
) -> Channels:
    """Connect the processes of each shard to a pipeline."""
    channels = Channels()
    if place.num_stages == 1:
        return channels
    num_shards = place.shard.count
    for index in range(num_shards):
        ranks = range(index, place.world_size, num_shards)
        pairs = [[*pair] for pair in zip(ranks, ranks[1:])]
        made = [groups.make(pair) for pair in (*pairs, [ranks[0], ranks[-1]])]
        if index == place.shard.index:
            channels = _choose_channels(place, device, ranks, made)
    return channels


def _choose_channels(
    place: StagePlace, device: torch.device, ranks: range, groups: list[Any]
) -> Channels:
    """Return a stage's own channels.

    Args:
      ranks: the processes of its pipeline.
      groups: of each pair of neighbours, and of the two ends.
    """
    me, last = place.stage, place.num_stages - 1

    def open_channel(group: Any, peer: int) -> DistributedChannel:
        # One more than the plans in flight: the oldest message has always arrived.
        return DistributedChannel(group, ranks[peer], device, place.num_stages + 2)

    tokens = None
    if me in (0, last):
        tokens = open_channel(groups[-1], last if me == 0 else 0)
    return Channels(
        before=open_channel(groups[me - 1], me - 1) if me > 0 else None,
        after=open_channel(groups[me], me + 1) if me < last else None,
        tokens=tokens,
    )


def _connect_shards(
    place: StagePlace,
    device: torch.device,
    groups: _Groups,
    store: Any,
    timeout_seconds: float,
) -> TensorGroup | None:
    """Connect the shards of each stage; returns None if layers are whole."""
    num_shards = place.shard.count
    if num_shards == 1:
        return None
    group = TensorGroup(place.shard)
    for stage in range(place.num_stages):
        ranks = range(stage * num_shards, (stage + 1) * num_shards)
        made, barrier = groups.make([*ranks]), groups.make([*ranks], backend="gloo")
        if stage != place.stage:
            continue
        slow = DistributedCollectives(made, barrier, first=ranks[0], size=num_shards)
        exchange = None
        if device.type == "cpu":
            key = f"shards/{stage}"
            exchange = share_memory(store, key, barrier, place.shard, timeout_seconds)
        if exchange is None:
            group.connect(slow)
        else:
            group.connect(SharedMemoryCollectives(exchange, slow, num_shards))
    return group
