"""Let the stages of a pipeline load a model, and connect them."""

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
from .messages import Allocate, LoadStage, Ready, StageLoaded
from .stages import StartedStage, open_stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Stages that have loaded their layers, and have no KV cache yet.

    Args:
      stages: in their order.
      info: the whole model's.
      device_type: torch's; the same for all stages.
      num_blocks: KV blocks that fit into the memory of each stage.
      port: where the first stage listens.
    """

    stages: tuple[StagePeer, ...]
    info: ModelInfo
    device_type: str
    num_blocks: int
    port: int

    async def connect(
        self, config: EngineConfig, max_model_len: int
    ) -> PipelineExecutor:
        """Connect the stages and let them run a first step together.

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
            assert isinstance(answer, Ready), "Ready answers Allocate"

        await _for_each(self.stages, ask)
        num_stages = len(self.stages)
        return PipelineExecutor(
            self.stages,
            # Without async scheduling, each token is known before the next is planned.
            depth=num_stages + config.scheduler.async_scheduling,
            step_timeout=config.parallel.step_timeout,
        )


@asynccontextmanager
async def open_pipeline(config: EngineConfig) -> AsyncIterator[Pipeline]:
    """Start the stages and load the model; the stages end when the block is left.

    Raises:
      StartupError: the model cannot be loaded, or a stage did not come.
      StageDied: a stage has ended.
    """
    async with open_stages(config.parallel) as stages:
        yield await load_stages(config, stages)


async def load_stages(
    config: EngineConfig, stages: tuple[StartedStage, ...]
) -> Pipeline:
    """Let newly started stages load the model.

    Raises:
      StartupError, StageDied
    """
    loaded: dict[str, StageLoaded] = {}
    level = logging.getLogger("trioserve").getEffectiveLevel()
    peers = tuple(stage.peer for stage in stages)

    async def ask(peer: StagePeer) -> None:
        number = peers.index(peer)
        stage = stages[number]
        begin = LoadStage(
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
        assert isinstance(answer, StageLoaded), "StageLoaded answers LoadStage"
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


def _check_alike(first: StageLoaded, other: StageLoaded, name: str) -> None:
    """Refuse stages whose differences would make the results wrong.

    Raises:
      StagesNotMet: they run different versions of this program.
      InvalidConfig: their devices or their models differ.
    """
    if other.version != first.version:
        raise StagesNotMet(
            f"{name} runs trioserve {other.version}, and stage 0 runs {first.version}"
        )
    if other.device_type != first.device_type:
        raise InvalidConfig(
            "device",
            f"{name} has a device of type {other.device_type}, and stage 0 one of type "
            f"{first.device_type}",
        )
    # Each stage counts the bytes of its own layers alone.
    alike = replace(other.info, kv_bytes_per_token=first.info.kv_bytes_per_token)
    if alike != first.info:
        raise InvalidConfig("model", f"{name} has loaded another model than stage 0")


async def _for_each(
    stages: Sequence[StagePeer], ask: Callable[[StagePeer], Awaitable[None]]
) -> None:
    """Run a call for all stages at the same time; the first failure ends the others."""
    failure: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            for stage in stages:
                nursery.start_soon(ask, stage)
    except* (StartupError, StageDied) as errors:
        failure = find_first(errors)
    if failure is not None:
        raise failure
