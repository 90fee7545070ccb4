"""Start the stages of a pipeline, or wait for the stages that torchrun has started."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

from ...config import ParallelConfig
from ...errors import InvalidConfig
from ...processes import MessageStream, open_child
from ...types.stage_place import StagePlace
from .executor import StagePeer
from .messages import FromStage
from .rendezvous import StageConnection, open_stage_connections
from .torchrun import LOOPBACK, LOOPBACK_ENVIRONMENT, Torchrun, find_torchrun

STAGE_PROCESS = "trioserve.startup.stage_process"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedStage:
    """A stage that has received no message yet.

    Args:
      place, local_rank, num_local_ranks, listens_on: as in messages.Prepare.
    """

    peer: StagePeer
    place: StagePlace
    local_rank: int
    num_local_ranks: int
    listens_on: str


@asynccontextmanager
async def open_stages(
    config: ParallelConfig,
) -> AsyncIterator[tuple[StartedStage, ...]]:
    """Start all stages as child processes; torchrun may start all but the first.

    They end when the block is left.

    Raises:
      InvalidConfig: torchrun has started a different number of processes.
      StagesNotMet: a stage did not connect.
    """
    torchrun = find_torchrun()
    async with AsyncExitStack() as stack:
        if torchrun is None:
            yield await _start_all(config, stack)
        else:
            _check(torchrun, config)
            yield await _start_first(torchrun, config, stack)


def _check(torchrun: Torchrun, config: ParallelConfig) -> None:
    torchrun.check(config)
    if torchrun.rank > 0:
        raise InvalidConfig(
            "pipeline_parallel_size",
            f"torchrun has started this process with rank {torchrun.rank}; only the "
            "command `trioserve serve` can have a rank above 0",
        )


def _list_places(config: ParallelConfig) -> list[StagePlace]:
    """Return the places of all processes, by rank."""
    return [
        StagePlace.of_rank(
            rank,
            num_stages=config.pipeline_parallel_size,
            num_shards=config.tensor_parallel_size,
        )
        for rank in range(config.world_size)
    ]


async def _start_all(
    config: ParallelConfig, stack: AsyncExitStack
) -> tuple[StartedStage, ...]:
    stages = [
        StartedStage(
            peer=await _start(place, stack, is_on_one_machine=True),
            place=place,
            local_rank=place.rank,
            num_local_ranks=config.world_size,
            listens_on=LOOPBACK,
        )
        for place in _list_places(config)
    ]
    return tuple(stages)


async def _start_first(
    torchrun: Torchrun, config: ParallelConfig, stack: AsyncExitStack
) -> tuple[StartedStage, ...]:
    place, *places = _list_places(config)
    first = StartedStage(
        peer=await _start(place, stack, is_on_one_machine=torchrun.is_on_one_machine),
        place=place,
        local_rank=torchrun.local_rank,
        num_local_ranks=torchrun.local_world_size,
        listens_on=torchrun.master_addr,
    )
    connections = await stack.enter_async_context(open_stage_connections(torchrun))
    others = [
        StartedStage(
            peer=_make_peer(connection, place),
            place=place,
            local_rank=connection.hello.local_rank,
            num_local_ranks=connection.hello.num_local_ranks,
            listens_on=torchrun.master_addr,
        )
        for connection, place in zip(connections, places)
    ]
    return first, *others


async def _start(
    place: StagePlace, stack: AsyncExitStack, *, is_on_one_machine: bool
) -> StagePeer:
    child = await stack.enter_async_context(
        open_child(
            STAGE_PROCESS,
            receives=FromStage,
            name=place.name,
            environment=LOOPBACK_ENVIRONMENT if is_on_one_machine else {},
        )
    )
    return StagePeer(
        name=child.name, stream=child.stream, describe_end=child.describe_end
    )


def _make_peer(connection: StageConnection, place: StagePlace) -> StagePeer:
    name = place.name

    async def describe_end() -> str:
        await trio.lowlevel.checkpoint()
        return f"{name} closed its connection"

    stream = MessageStream[Any](connection.sock, receives=FromStage)
    return StagePeer(name=name, stream=stream, describe_end=describe_end)
