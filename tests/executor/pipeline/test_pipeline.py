"""The messages to the stages before they run, and the stages that are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
import logging
from typing import Any

from msgspec.structs import replace as change
import pytest
import trio

from trioserve.config import EngineConfig, ModelConfig, ParallelConfig
from trioserve.errors import InvalidConfig, StagesNotMet, StartupError, WeightsNotFound
from trioserve.executor.pipeline.executor import StageDied, StagePeer
from trioserve.executor.pipeline.messages import (
    FromStage,
    Load,
    Prepare,
    Prepared,
    StageLoaded,
    ToStage,
)
from trioserve.executor.pipeline.pipeline import load_stages
from trioserve.executor.pipeline.stages import StartedStage
from trioserve.processes import MessageStream
from trioserve.testing.fake_device import make_info
from trioserve.testing.processes import open_streams
from trioserve.types.not_loaded import NotLoaded
from trioserve.types.stage_place import StagePlace
from trioserve.types.windows import CacheBlocks, WindowLayers

CONFIG = EngineConfig(
    model=ModelConfig(model="some-model"),
    parallel=ParallelConfig(pipeline_parallel_size=3),
)

PREPARED = Prepared(version="1.0", device_type="cpu", port=4321)
LOADED = StageLoaded(
    info=replace(make_info(), kv_bytes_per_token=100),
    blocks=CacheBlocks(num_blocks=10),
    max_num_seqs=8,
)

# For None the stage hangs up.
Answer = Callable[[int], Prepared | StageLoaded | NotLoaded | None]


@asynccontextmanager
async def start_stages(
    answer: Answer, begins: list[Prepare], prepare: Answer = lambda number: PREPARED
) -> AsyncIterator[tuple[StartedStage, ...]]:
    """Start three stages; the last one is alone on its machine."""

    async def run(number: int, stream: MessageStream[Any]) -> None:
        begins.append(await stream.receive())
        for reply in (prepare, answer):
            message = reply(number)
            if message is None:
                return stream.close()
            await stream.send(message)
            if reply is prepare:
                assert await stream.receive() == Load(port=4321)

    def make_stage(number: int, stream: MessageStream[Any]) -> StartedStage:
        async def describe_end() -> str:
            await trio.lowlevel.checkpoint()
            return f"stage {number} has ended"

        return StartedStage(
            peer=StagePeer(
                name=f"stage {number}", stream=stream, describe_end=describe_end
            ),
            place=StagePlace(stage=number, num_stages=3),
            local_rank=number % 2,
            num_local_ranks=2 - number // 2,
            listens_on="127.0.0.1",
        )

    with trio.fail_after(60), ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            stages = []
            for number in range(3):
                ours, theirs = stack.enter_context(
                    open_streams(ours=FromStage, theirs=ToStage)
                )
                nursery.start_soon(run, number, theirs)
                stages.append(make_stage(number, ours))
            yield tuple(stages)
            nursery.cancel_scope.cancel()


def load_windows(*windows: tuple[int, int] | None) -> Answer:
    """Return the answers of stages whose layers have windows.

    Args:
      windows: the window of each stage, and its window blocks.
    """

    def answer(number: int) -> StageLoaded:
        own = windows[number]
        if own is None:
            return change(LOADED, blocks=CacheBlocks(num_blocks=50))
        layers = WindowLayers(window=own[0], kv_bytes_per_token=60)
        return change(
            LOADED,
            info=replace(LOADED.info, windows=layers),
            blocks=CacheBlocks(num_blocks=40, num_window_blocks=own[1]),
        )

    return answer


async def test_window_blocks_fit_into_each_stage() -> None:
    async with start_stages(load_windows(None, (8, 20), (8, 30)), []) as stages:
        pipeline = await load_stages(CONFIG, stages)
    assert pipeline.blocks == CacheBlocks(num_blocks=40, num_window_blocks=20)
    assert pipeline.info.windows == WindowLayers(window=8, kv_bytes_per_token=120)


async def test_stages_of_different_windows_have_the_same_blocks_for_all_layers() -> (
    None
):
    async with start_stages(load_windows(None, (8, 20), (4, 10)), []) as stages:
        pipeline = await load_stages(CONFIG, stages)
    # 40 blocks of 40 bytes a token, and 10 of 60.
    assert pipeline.blocks == CacheBlocks(num_blocks=22)


async def test_each_stage_gets_its_place_and_the_smallest_cache_counts() -> None:
    def answer(number: int) -> StageLoaded:
        # Each stage holds the keys and values of its own layers.
        return change(
            LOADED,
            info=replace(LOADED.info, kv_bytes_per_token=100 + number),
            blocks=CacheBlocks(num_blocks=10 - number),
        )

    begins: list[Prepare] = []
    async with start_stages(answer, begins) as stages:
        pipeline = await load_stages(CONFIG, stages)
    assert pipeline.stages == tuple(stage.peer for stage in stages)
    assert pipeline.info == replace(LOADED.info, kv_bytes_per_token=303)
    assert pipeline.blocks == CacheBlocks(num_blocks=8)
    begins.sort(key=lambda begin: begin.place.stage)
    places = [
        (b.place.stage, b.place.num_stages, b.local_rank, b.num_local_ranks)
        for b in begins
    ]
    assert places == [(0, 3, 0, 2), (1, 3, 1, 2), (2, 3, 0, 1)]
    assert all(begin.config == CONFIG for begin in begins)


@pytest.mark.parametrize(
    ("other", "error", "reason"),
    [
        (
            change(PREPARED, version="1.1"),
            StagesNotMet,
            "stage 2 runs trioserve 1.1, and stage 0 runs 1.0",
        ),
        (
            change(PREPARED, device_type="cuda"),
            InvalidConfig,
            "--device: stage 2 has a device of type cuda, and stage 0 one of type cpu",
        ),
        (
            change(LOADED, info=replace(LOADED.info, dtype="bfloat16")),
            InvalidConfig,
            "--model: stage 2 has loaded another model than stage 0",
        ),
        (
            change(LOADED, info=replace(LOADED.info, kernels="native avx2")),
            InvalidConfig,
            "--kernels: stage 2 runs native avx2, and stage 0 runs torch; with torch",
        ),
        (
            NotLoaded.of(WeightsNotFound("some-model", "it is nowhere")),
            WeightsNotFound,
            "cannot find the model 'some-model': it is nowhere",
        ),
    ],
)
async def test_a_stage_that_does_not_go_with_the_others_is_refused(
    other: Prepared | StageLoaded | NotLoaded, error: type[StartupError], reason: str
) -> None:
    def prepare(number: int) -> Any:
        return other if number == 2 and isinstance(other, Prepared) else PREPARED

    def load(number: int) -> Any:
        return LOADED if number < 2 or isinstance(other, Prepared) else other

    async with start_stages(load, [], prepare) as stages:
        with pytest.raises(error, match=reason):
            await load_stages(CONFIG, stages)


async def test_a_stage_that_dies_while_it_loads_is_named() -> None:
    async with start_stages(lambda n: None if n == 1 else LOADED, []) as stages:
        with pytest.raises(StageDied, match="stage 1 has ended"):
            await load_stages(CONFIG, stages)


async def test_stages_log_at_the_engines_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, logger="trioserve")
    begins: list[Prepare] = []
    async with start_stages(lambda n: LOADED, begins) as stages:
        await load_stages(CONFIG, stages)
    assert [begin.log_level for begin in begins] == [logging.CRITICAL] * 3
