"""Have the stages of a pipeline load a model, and bring them together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
import logging

import trio

from ..config import EngineConfig
from ..errors import InvalidConfig, StagesNotMet, StartupError, find_first
from ..types.model_info import ModelInfo
from ..types.not_loaded import NotLoaded
from .executor import PipelineExecutor, StageDied, StagePeer
from .messages import Allocate, Begin, Loaded, Ready
from .stages import StartedStage, open_stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Stages with their layers, but without a KV cache yet.

    Args:
      info: the model's.
      device_type: torch's, of all of them.
      num_blocks: KV blocks that fit each of them.
    """

    stages: tuple[StagePeer, ...]
    info: ModelInfo
    device_type: str
    num_blocks: int
    port: int

    async def connect(
        self, config: EngineConfig, max_model_len: int
    ) -> PipelineExecutor:
        """Let them meet and run a first step together.

        Raises:
          StartupError, StageDied
        """
        allocate = Allocate(
            num_blocks=self.num_blocks,
            max_model_len=max_model_len,
            port=self.port,
        )

        async def ask(stage: StagePeer) -> None:
            await stage.send(allocate)
            answer = await stage.receive()
            assert isinstance(answer, Ready), "that is the answer to Allocate"

        await _for_each(self.stages, ask)
        num_stages = len(self.stages)
        return PipelineExecutor(
            self.stages,
            # Without, a sequence's token is known before it is planned again.
            depth=num_stages + config.scheduler.async_scheduling,
            step_timeout=config.parallel.step_timeout,
        )


@asynccontextmanager
async def open_pipeline(config: EngineConfig) -> AsyncIterator[Pipeline]:
    """Start the stages and load the model; they end when the block is left.

    Raises:
      StartupError: as where it is loaded here, or they did not come together.
      StageDied: one of them has ended.
    """
    async with open_stages(config.parallel) as stages:
        yield await load_stages(config, stages)


async def load_stages(
    config: EngineConfig, stages: tuple[StartedStage, ...]
) -> Pipeline:
    """Have stages that have been told nothing yet load the model.

    Raises:
      StartupError, StageDied
    """
    loaded: dict[str, Loaded] = {}
    level = logging.getLogger("trioserve").getEffectiveLevel()
    peers = tuple(stage.peer for stage in stages)

    async def ask(peer: StagePeer) -> None:
        number = peers.index(peer)
        stage = stages[number]
        begin = Begin(
            config=config,
            stage=number,
            num_stages=len(stages),
            local_stage=stage.local_stage,
            num_local_stages=stage.num_local_stages,
            listens_on=stage.listens_on,
            log_level=level,
        )
        await peer.send(begin)
        answer = await peer.receive()
        if isinstance(answer, NotLoaded):
            raise answer.restore()
        assert isinstance(answer, Loaded), "that is the answer to Begin"
        loaded[peer.name] = answer

    await _for_each(peers, ask)
    first = loaded[peers[0].name]
    for name, other in loaded.items():
        _check_alike(first, other, name)
    return Pipeline(
        stages=peers,
        info=first.info,
        device_type=first.device_type,
        num_blocks=min(each.num_blocks for each in loaded.values()),
        port=first.port,
    )


def _check_alike(first: Loaded, other: Loaded, name: str) -> None:
    """Refuse what machines may have different, and would compute nonsense with.

    Raises:
      StagesNotMet: they run different versions of this program.
      InvalidConfig
    """
    if other.version != first.version:
        raise StagesNotMet(
            f"{name} is trioserve {other.version}, and stage 0 {first.version}"
        )
    if other.device_type != first.device_type:
        raise InvalidConfig(
            "device",
            f"{name} has a device of type {other.device_type}, and stage 0 one of type "
            f"{first.device_type}",
        )
    # All but what the layers keep that each of them has.
    alike = replace(other.info, kv_bytes_per_token=first.info.kv_bytes_per_token)
    if alike != first.info:
        raise InvalidConfig("model", f"{name} has found another one than stage 0")


async def _for_each(
    stages: Sequence[StagePeer], ask: Callable[[StagePeer], Awaitable[None]]
) -> None:
    """Ask all stages at once; the first one that fails ends it."""
    failure: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            for stage in stages:
                nursery.start_soon(ask, stage)
    except* (StartupError, StageDied) as errors:
        failure = find_first(errors)
    if failure is not None:
        raise failure
