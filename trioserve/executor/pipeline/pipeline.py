"""Let the stages of a pipeline load a model, and connect them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
import logging
from typing import TypeVar

import trio

from ...config import EngineConfig
from ...errors import InvalidConfig, StagesNotMet, StartupError, find_first
from ...types.model_info import ModelInfo
from ...types.not_loaded import NotLoaded
from ...types.windows import CacheBlocks, WindowLayers
from .executor import PipelineExecutor, StageDied, StagePeer
from .messages import Allocate, Load, Prepare, Prepared, Ready, StageLoaded
from .stages import StartedStage, open_stages

Answer = TypeVar("Answer", Prepared, StageLoaded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Stages that have loaded their layers, and have no KV cache yet.

    Args:
      stages: in their order.
      info: the whole model's.
      device_type: torch's; the same for all stages.
      blocks: the KV cache that fits into the memory of each stage.
      max_num_seqs: sequences whose states fit into the memory of each stage.
    """

    stages: tuple[StagePeer, ...]
    info: ModelInfo
    device_type: str
    blocks: CacheBlocks
    max_num_seqs: int

    async def connect(
        self, config: EngineConfig, max_model_len: int
    ) -> PipelineExecutor:
        """Allocate the KV cache, and let the stages run a first step together.

        Raises:
          StartupError, StageDied
        """
        allocate = Allocate(
            blocks=self.blocks,
            max_num_seqs=self.max_num_seqs,
            max_model_len=max_model_len,
        )

        async def ask(stage: StagePeer) -> None:
            await stage.send(allocate)
            answer = await stage.receive()
            assert isinstance(answer, Ready), "Ready answers Allocate"

        await _for_each(self.stages, ask)
        num_stages = config.parallel.pipeline_parallel_size
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
    peers = tuple(stage.peer for stage in stages)
    prepared = await _prepare(config, stages)
    load = Load(port=prepared[0].port)
    loaded = await _ask_all(peers, lambda number: load, StageLoaded)
    for peer, other in zip(peers, loaded):
        # Each process counts the bytes of its own layers and heads alone.
        alike = replace(
            other.info,
            kv_bytes_per_token=loaded[0].info.kv_bytes_per_token,
            windows=loaded[0].info.windows,
            state_bytes=loaded[0].info.state_bytes,
        )
        first = loaded[0].info
        if other.info.kernels != first.kernels:
            # They put the rows of a step into different orders.
            raise InvalidConfig(
                "kernels",
                f"{peer.name} runs {other.info.kernels}, and {peers[0].name} runs "
                f"{first.kernels}; with torch all run the same",
            )
        if alike != first:
            raise InvalidConfig(
                "model", f"{peer.name} has loaded another model than {peers[0].name}"
            )
    return Pipeline(
        stages=peers,
        info=replace(
            loaded[0].info,
            kv_bytes_per_token=sum(each.info.kv_bytes_per_token for each in loaded),
            state_bytes=sum(each.info.state_bytes for each in loaded),
            windows=_join_windows(loaded),
        ),
        device_type=prepared[0].device_type,
        blocks=_join_blocks(loaded),
        max_num_seqs=min(each.max_num_seqs for each in loaded),
    )


def _join_windows(loaded: Sequence[StageLoaded]) -> WindowLayers | None:
    windows = [each.info.windows for each in loaded if each.info.windows is not None]
    if not windows:
        return None
    return WindowLayers(
        window=max(each.window for each in windows),
        kv_bytes_per_token=sum(each.kv_bytes_per_token for each in windows),
    )


def _join_blocks(loaded: Sequence[StageLoaded]) -> CacheBlocks:
    """Return the KV cache that fits into the memory of each process."""
    windows = {each.info.windows.window for each in loaded if each.info.windows}
    blocks = [each.blocks for each in loaded]
    if len(windows) > 1:
        # The processes have divided their memory for windows of their own layers.
        blocks = [_undivide(each) for each in loaded]
    counts = [each.num_window_blocks for each in blocks]
    divided = [count for count in counts if count is not None]
    return CacheBlocks(
        num_blocks=min(each.num_blocks for each in blocks),
        num_window_blocks=min(divided, default=None),
    )


def _undivide(stage: StageLoaded) -> CacheBlocks:
    """Return the blocks of a process if all its layers have the same blocks."""
    windows, blocks = stage.info.windows, stage.blocks
    if windows is None or blocks.num_window_blocks is None:
        return CacheBlocks(num_blocks=blocks.num_blocks)
    whole, part = stage.info.kv_bytes_per_token, windows.kv_bytes_per_token
    num_bytes = blocks.num_blocks * (whole - part) + blocks.num_window_blocks * part
    return CacheBlocks(num_blocks=num_bytes // whole)


async def _prepare(
    config: EngineConfig, stages: tuple[StartedStage, ...]
) -> list[Prepared]:
    level = logging.getLogger("trioserve").getEffectiveLevel()
    peers = tuple(stage.peer for stage in stages)

    def describe(number: int) -> Prepare:
        stage = stages[number]
        return Prepare(
            config=config,
            place=stage.place,
            local_rank=stage.local_rank,
            num_local_ranks=stage.num_local_ranks,
            listens_on=stage.listens_on,
            log_level=level,
        )

    prepared = await _ask_all(peers, describe, Prepared)
    for peer, other in zip(peers, prepared):
        _check_alike(prepared[0], other, peers[0].name, peer.name)
    return prepared


def _check_alike(first: Prepared, other: Prepared, first_name: str, name: str) -> None:
    """Refuse processes whose differences would make the results wrong.

    Raises:
      StagesNotMet: they run different versions of this program.
      InvalidConfig: their devices differ.
    """
    if other.version != first.version:
        raise StagesNotMet(
            f"{name} runs trioserve {other.version}, and {first_name} runs "
            f"{first.version}"
        )
    if other.device_type != first.device_type:
        raise InvalidConfig(
            "device",
            f"{name} has a device of type {other.device_type}, and {first_name} one of "
            f"type {first.device_type}",
        )


async def _ask_all(
    peers: tuple[StagePeer, ...],
    describe: Callable[[int], object],
    kind: type[Answer],
) -> list[Answer]:
    """Send each process a message, and return the answers in the same order.

    Args:
      describe: number of a process -> the message.

    Raises:
      StartupError: a process refuses.
      StageDied
    """
    answers: dict[str, Answer] = {}

    async def ask(peer: StagePeer) -> None:
        await peer.send(describe(peers.index(peer)))
        answer = await peer.receive()
        if isinstance(answer, NotLoaded):
            raise answer.restore()
        assert isinstance(answer, kind), f"{kind.__name__} is the answer"
        answers[peer.name] = answer

    await _for_each(peers, ask)
    return [answers[peer.name] for peer in peers]


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
