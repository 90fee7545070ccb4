"""Start the stages of a pipeline and bring them together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
import logging

import trio

from .config import EngineConfig
from .errors import StartupError, find_first, restore_startup_error
from .executor import PipelineExecutor, StageDied, StagePeer
from .executor.messages import Allocate, Begin, FromStage, Loaded, NotLoaded, Ready
from .processes import PeerGone, open_child
from .steps import ModelInfo

_LOOPBACK = "127.0.0.1"

# gloo would listen at the address that the machine's name has.
_LOCAL = {"GLOO_SOCKET_IFNAME": "lo"}


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
        self,
        config: EngineConfig,
        max_model_len: int,
        *,
        exchanges_always: bool = False,
    ) -> PipelineExecutor:
        """Let them meet and run a first step together.

        Raises:
          StartupError, StageDied
        """
        allocate = Allocate(
            num_blocks=self.num_blocks,
            max_model_len=max_model_len,
            port=self.port,
            exchanges_always=exchanges_always,
        )

        async def ask(stage: StagePeer) -> None:
            await _send(stage, allocate)
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
      StartupError: as where it is loaded here.
      StageDied: one of them has ended.
    """
    num_stages = config.parallel.pipeline_parallel_size
    async with AsyncExitStack() as stack:
        stages = []
        for number in range(num_stages):
            name = f"stage {number}"
            child = await stack.enter_async_context(
                open_child(
                    "trioserve.stage_process",
                    receives=FromStage,
                    name=name,
                    environment=_LOCAL,
                )
            )
            stages.append(
                StagePeer(
                    name=name, stream=child.stream, describe_end=child.describe_end
                )
            )
        yield await _load(config, tuple(stages))


async def _load(config: EngineConfig, stages: tuple[StagePeer, ...]) -> Pipeline:
    loaded: dict[str, Loaded] = {}
    level = logging.getLogger("trioserve").getEffectiveLevel()

    async def ask(stage: StagePeer) -> None:
        number = stages.index(stage)
        begin = Begin(
            config=config,
            stage=number,
            num_stages=len(stages),
            local_stage=number,
            num_local_stages=len(stages),
            listens_on=_LOOPBACK,
            log_level=level,
        )
        await _send(stage, begin)
        answer = await stage.receive()
        if isinstance(answer, NotLoaded):
            raise restore_startup_error(answer.kind, answer.reason)
        assert isinstance(answer, Loaded), "that is the answer to Begin"
        loaded[stage.name] = answer

    await _for_each(stages, ask)
    first = loaded[stages[0].name]
    return Pipeline(
        stages=stages,
        info=first.info,
        device_type=first.device_type,
        num_blocks=min(each.num_blocks for each in loaded.values()),
        port=first.port,
    )


async def _send(stage: StagePeer, message: object) -> None:
    try:
        await stage.stream.send(message)
    except PeerGone:
        raise StageDied(await stage.describe_end()) from None


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
