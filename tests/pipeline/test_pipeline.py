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
from trioserve.pipeline.executor import StageDied, StagePeer
from trioserve.pipeline.messages import FromStage, LoadStage, StageLoaded, ToStage
from trioserve.pipeline.pipeline import load_stages
from trioserve.pipeline.stages import StartedStage
from trioserve.processes import MessageStream
from trioserve.testing.fake_device import make_info
from trioserve.testing.processes import open_streams
from trioserve.types.not_loaded import NotLoaded

CONFIG = EngineConfig(
    model=ModelConfig(model="some-model"),
    parallel=ParallelConfig(pipeline_parallel_size=3),
)

LOADED = StageLoaded(
    version="1.0",
    info=replace(make_info(), kv_bytes_per_token=100),
    device_type="cpu",
    num_blocks=10,
    port=0,
)

# For None the stage hangs up.
Answer = Callable[[int], StageLoaded | NotLoaded | None]


@asynccontextmanager
async def start_stages(
    answer: Answer, begins: list[LoadStage]
) -> AsyncIterator[tuple[StartedStage, ...]]:
    """Start three stages; the last one is alone on its machine."""

    async def run(number: int, stream: MessageStream[Any]) -> None:
        begin = await stream.receive()
        begins.append(begin)
        message = answer(number)
        if message is None:
            stream.close()
        else:
            await stream.send(message)

    def make_stage(number: int, stream: MessageStream[Any]) -> StartedStage:
        async def describe_end() -> str:
            await trio.lowlevel.checkpoint()
            return f"stage {number} is no more"

        return StartedStage(
            peer=StagePeer(
                name=f"stage {number}", stream=stream, describe_end=describe_end
            ),
            local_stage=number % 2,
            num_local_stages=2 - number // 2,
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


async def test_each_stage_gets_its_place_and_the_smallest_cache_counts() -> None:
    def answer(number: int) -> StageLoaded:
        # Each stage holds the keys and values of its own layers; the first one listens.
        return change(
            LOADED,
            info=replace(LOADED.info, kv_bytes_per_token=100 + number),
            num_blocks=10 - number,
            port=0 if number else 4321,
        )

    begins: list[LoadStage] = []
    async with start_stages(answer, begins) as stages:
        pipeline = await load_stages(CONFIG, stages)
    assert pipeline.stages == tuple(stage.peer for stage in stages)
    assert pipeline.info == LOADED.info
    assert (pipeline.num_blocks, pipeline.port) == (8, 4321)
    begins.sort(key=lambda begin: begin.stage)
    places = [
        (b.stage, b.num_stages, b.local_stage, b.num_local_stages) for b in begins
    ]
    assert places == [(0, 3, 0, 2), (1, 3, 1, 2), (2, 3, 0, 1)]
    assert all(begin.config == CONFIG for begin in begins)


@pytest.mark.parametrize(
    ("other", "error", "reason"),
    [
        (
            change(LOADED, version="1.1"),
            StagesNotMet,
            "stage 2 runs trioserve 1.1, and stage 0 runs 1.0",
        ),
        (
            change(LOADED, device_type="cuda"),
            InvalidConfig,
            "--device: stage 2 has a device of type cuda, and stage 0 one of type cpu",
        ),
        (
            change(LOADED, info=replace(LOADED.info, dtype="bfloat16")),
            InvalidConfig,
            "--model: stage 2 has loaded another model than stage 0",
        ),
        (
            NotLoaded.of(WeightsNotFound("some-model", "it is nowhere")),
            WeightsNotFound,
            "cannot find the model 'some-model': it is nowhere",
        ),
    ],
)
async def test_a_stage_that_does_not_go_with_the_others_is_refused(
    other: StageLoaded | NotLoaded, error: type[StartupError], reason: str
) -> None:
    async with start_stages(lambda n: other if n == 2 else LOADED, []) as stages:
        with pytest.raises(error, match=reason):
            await load_stages(CONFIG, stages)


async def test_a_stage_that_dies_while_it_loads_is_named() -> None:
    async with start_stages(lambda n: None if n == 1 else LOADED, []) as stages:
        with pytest.raises(StageDied, match="stage 1 is no more"):
            await load_stages(CONFIG, stages)


async def test_stages_log_at_the_engines_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, logger="trioserve")
    begins: list[LoadStage] = []
    async with start_stages(lambda n: LOADED, begins) as stages:
        await load_stages(CONFIG, stages)
    assert [begin.log_level for begin in begins] == [logging.CRITICAL] * 3
