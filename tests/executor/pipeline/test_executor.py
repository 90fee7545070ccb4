"""A pipeline's executor, over connections to stages that are tasks in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
import os
from typing import Any

import outcome
import psutil
import pytest
import trio
import trio.testing
from warm_start import WarmClient

from trioserve.config import EngineConfig, build_config
from trioserve.errors import InvalidAdapter, WeightsNotFound
from trioserve.executor.pipeline.executor import PipelineExecutor, StageDied, StagePeer
from trioserve.executor.pipeline.messages import (
    AdapterLoaded,
    AdapterNotLoaded,
    Allocate,
    DropAdapter,
    FromStage,
    LoadAdapter,
    Ready,
    Step,
    Stepped,
    ToStage,
)
from trioserve.executor.pipeline.pipeline import Pipeline, open_pipeline
from trioserve.processes import Alive, MessageStream
from trioserve.testing.fake_device import make_info
from trioserve.testing.processes import open_streams
from trioserve.types.adapter import AdapterFacts, AdapterSource
from trioserve.types.output import StepResult
from trioserve.types.plan import SlotStart, StepPlan
from trioserve.types.prompt import EmbeddedInput
from trioserve.types.sampling import SamplingParams
from trioserve.types.tensors import TensorBytes
from trioserve.types.windows import CacheBlocks


class FakeStage:
    """Behaves like the process of a stage, from the executor's view.

    Args:
      is_ready: the stage needs no Allocate message.
      answers: the stage sends the results of steps, as the last stage does.
      step_seconds: how long a step takes.

    Attributes:
      plans: all plans that came.
      adapters: all messages about adapters that came.
      allocated: the Allocate message, if one came.
    """

    def __init__(
        self,
        stream: MessageStream[Any],
        *,
        is_ready: bool,
        answers: bool,
        step_seconds: float,
    ) -> None:
        self.plans: list[StepPlan] = []
        self.adapters: list[LoadAdapter | DropAdapter] = []
        self.allocated: Allocate | None = None
        self._stream = stream
        self._is_ready = is_ready
        self._answers = answers
        self._step_seconds = step_seconds
        self._beats = trio.CancelScope()
        self._life = trio.CancelScope()

    async def run(self) -> None:
        with self._life:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stream.run)
                if not self._is_ready:
                    self.allocated = await self._stream.receive()
                    self._stream.send_nowait(Ready())
                nursery.start_soon(self._beat)
                while True:
                    await self._take(await self._stream.receive())
        # The end of a process closes its connection, too.
        self._stream.close()

    def answer(self, message: AdapterLoaded | AdapterNotLoaded) -> None:
        self._stream.send_nowait(message)

    def hang_up(self) -> None:
        self._life.cancel()

    def fall_silent(self) -> None:
        self._beats.cancel()

    async def _take(self, message: Any) -> None:
        if not isinstance(message, Step):
            self.adapters.append(message)
            return
        self.plans.append(message.plan)
        await trio.sleep(self._step_seconds)
        if self._answers:
            result = StepResult(step_id=message.plan.step_id, sampled=())
            self._stream.send_nowait(Stepped(result=result))

    async def _beat(self) -> None:
        with self._beats:
            while True:
                self._stream.send_nowait(Alive())
                await trio.sleep(1)


class Stages:
    """Fake stages, and the connections to them."""

    def __init__(self) -> None:
        self.fakes: list[FakeStage] = []
        self.peers: list[StagePeer] = []

    async def add(
        self, stack: AsyncExitStack, nursery: trio.Nursery, **settings: Any
    ) -> None:
        ours, theirs = stack.enter_context(open_streams(ours=FromStage, theirs=ToStage))
        name = f"stage {len(self.fakes)}"
        self.fakes.append(FakeStage(theirs, **settings))
        self.peers.append(
            StagePeer(name=name, stream=ours, describe_end=partial(describe, name))
        )
        nursery.start_soon(self.fakes[-1].run)


async def describe(name: str) -> str:
    await trio.lowlevel.checkpoint()
    return f"{name} was ended by SIGKILL"


@asynccontextmanager
async def open_stages(
    num_stages: int = 3, *, step_seconds: float = 0.01, is_ready: bool = True
) -> AsyncIterator[Stages]:
    stages = Stages()
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        for number in range(num_stages):
            await stages.add(
                stack,
                nursery,
                is_ready=is_ready,
                answers=number == num_stages - 1,
                step_seconds=step_seconds,
            )
        yield stages
        nursery.cancel_scope.cancel()


def drive(stages: Stages, step_timeout: float = 300.0) -> PipelineExecutor:
    return PipelineExecutor(
        stages.peers, depth=len(stages.peers) + 1, step_timeout=step_timeout
    )


def plan_of(number: int, *starts: SlotStart) -> StepPlan:
    return StepPlan(step_id=number, starts=starts, rows=())


def ignore() -> None:
    pass


async def run_until_it_ends(
    executor: PipelineExecutor, then: Callable[[], None] = ignore
) -> str:
    """Return the reason why the executor ended."""
    with pytest.RaisesGroup(StageDied, flatten_subgroups=True) as caught:
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(1000):
                await nursery.start(executor.run)
                then()
                await trio.sleep_forever()
            raise AssertionError("it goes on")
    [error] = caught.value.exceptions
    while isinstance(error, ExceptionGroup):
        [error] = error.exceptions
    return str(error)


async def test_all_stages_get_all_plans_in_order_and_results_come_in_order(
    autojump_clock: object,
) -> None:
    plans = [plan_of(number) for number in range(40)]
    done: list[int] = []
    async with open_stages(3) as stages, trio.open_nursery() as nursery:
        executor = drive(stages)
        await nursery.start(executor.run)
        handles = [
            executor.submit(plan, partial(done.append, plan.step_id)) for plan in plans
        ]
        with trio.move_on_after(0.205):
            await trio.sleep_forever()
        # Each result is reported when it comes.
        assert done == list(range(20))
        assert [handle.is_done for handle in handles] == [True] * 20 + [False] * 20
        await trio.sleep(1)
        assert done == list(range(40))
        assert [handle.take().step_id for handle in handles] == done
        assert [fake.plans for fake in stages.fakes] == [plans] * 3
        nursery.cancel_scope.cancel()


async def test_large_tensors_reach_all_stages_through_one_memory(
    autojump_clock: object,
) -> None:
    """No descriptor of it is left for living stages or for lost stages."""
    tensor = TensorBytes(data=bytes(range(256)) * 4096, dtype="uint8", shape=(2**20,))
    start = SlotStart(
        slot=0,
        prompt_token_ids=(1,),
        output_token_ids=(),
        sampling=SamplingParams(),
        seed=0,
        embedded=(
            EmbeddedInput(
                kind="image", runs=((0, 1),), keys=bytes(16), tensors={"x": tensor}
            ),
        ),
    )
    before = len(list_descriptors())
    async with open_stages(3) as stages:
        with trio.move_on_after(2):
            async with trio.open_nursery() as nursery:
                executor = drive(stages)
                await nursery.start(executor.run)
                for number in range(5):
                    executor.submit(plan_of(number, start), ignore)
                await trio.sleep_forever()
        for fake in stages.fakes:
            assert fake.plans == [plan_of(number, start) for number in range(5)]
        # Each mapping has its own descriptor as long as the tensor is alive.
        memories = list_memories()
        assert (len(memories), len(set(memories))) == (15, 5)
        for fake in stages.fakes:
            fake.plans.clear()
        # No later plan has the tensor.
        executor.submit(plan_of(5, start), ignore)
    assert not list_memories()
    assert len(list_descriptors()) == before


def list_descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")


def list_memories() -> list[int]:
    """Return the shared memory behind each open descriptor."""
    return [
        os.fstat(int(number)).st_ino
        for number in list_descriptors()
        if "memfd:trioserve" in read_link(number)
    ]


def read_link(number: str) -> str:
    # The descriptor that listed the folder is closed.
    with suppress(FileNotFoundError):
        return os.readlink(f"/proc/self/fd/{number}")
    return ""


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_stage_that_hangs_up_ends_the_executor_and_is_named(
    autojump_clock: object, number: int
) -> None:
    async with open_stages(3) as stages:
        began = trio.current_time()
        reason = await run_until_it_ends(drive(stages), stages.fakes[number].hang_up)
        assert reason == f"stage {number} was ended by SIGKILL"
        assert trio.current_time() == began


@pytest.mark.parametrize("number", [0, 2])
async def test_a_stage_that_is_silent_ends_it(
    autojump_clock: object, number: int
) -> None:
    async with open_stages(3) as stages:
        began = trio.current_time()
        fall_silent = stages.fakes[number].fall_silent
        reason = await run_until_it_ends(drive(stages), fall_silent)
        assert reason == f"stage {number} has been silent for 5 s"
        assert 5 <= trio.current_time() - began <= 7


async def test_beats_alone_keep_it_alive(autojump_clock: object) -> None:
    async with open_stages(2, step_seconds=250) as stages:
        with trio.move_on_after(900) as scope:
            async with trio.open_nursery() as nursery:
                executor = drive(stages)
                await nursery.start(executor.run)
                await trio.sleep(300)
                # Each stage takes less than the limit; all of them together take more.
                for step in range(2):
                    executor.submit(plan_of(step), ignore)
                await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_a_step_that_takes_too_long_ends_it(autojump_clock: object) -> None:
    async with open_stages(2, step_seconds=1000) as stages:
        executor = drive(stages, step_timeout=60)
        began = trio.current_time()
        reason = await run_until_it_ends(
            executor, lambda: (executor.submit(plan_of(0), ignore), None)[1]
        )
        assert reason == "a step has taken more than 60 s"
        assert 60 <= trio.current_time() - began <= 62


async def test_an_engine_that_was_stopped_for_a_while_does_not_blame_the_stages(
    mock_clock: trio.testing.MockClock,
) -> None:
    """It still has to read the messages that came while it was stopped."""
    async with open_stages(2) as stages, trio.open_nursery() as nursery:
        executor = drive(stages, step_timeout=60)
        await nursery.start(executor.run)
        for _ in range(20):
            await trio.testing.wait_all_tasks_blocked(0.001)
            mock_clock.jump(100)
        handle = executor.submit(plan_of(0), ignore)
        for _ in range(2):
            await trio.testing.wait_all_tasks_blocked(0.001)
            mock_clock.jump(0.1)
        await trio.testing.wait_all_tasks_blocked(0.001)
        assert handle.is_done
        nursery.cancel_scope.cancel()


FRENCH = AdapterSource(number=4, name="french", path="adapters/french")
LOAD, DROP = LoadAdapter(source=FRENCH), DropAdapter(number=4)


def loaded(**changes: Any) -> AdapterLoaded:
    facts = AdapterFacts(number=4, name="french", digest=b"1", rank=8, num_bytes=10)
    return AdapterLoaded(facts=replace(facts, **changes))


ANSWERS: list[tuple[AdapterLoaded | AdapterNotLoaded, str]] = [
    (loaded(rank=16, unmatched=("layers.0",)), ""),
    (AdapterNotLoaded(number=4, reason="r must be"), "r must be"),
    (loaded(unmatched=("layers.0", "layers.9")), "the tensor layers.9 belongs to no"),
    (loaded(digest=b"2"), "its files differ"),
]


async def test_an_adapter_is_loaded_by_all_stages_or_by_none(
    autojump_clock: object,
) -> None:
    for last, reason in ANSWERS:
        async with open_stages(3) as stages, trio.open_nursery() as nursery:
            executor = drive(stages)
            await nursery.start(executor.run)
            outcomes: list[outcome.Outcome[AdapterFacts]] = []

            async def load() -> None:
                outcomes.append(await outcome.acapture(executor.load_adapter, FRENCH))

            nursery.start_soon(load)
            await trio.sleep(1)
            assert [fake.adapters for fake in stages.fakes] == [[LOAD]] * 3
            # Steps run meanwhile.
            handle = executor.submit(plan_of(0), ignore)
            await trio.sleep(1)
            assert handle.is_done and not outcomes
            stages.fakes[0].answer(loaded(unmatched=("layers.9", "layers.8")))
            stages.fakes[1].answer(loaded(unmatched=("layers.0", "layers.9")))
            await trio.sleep(1)
            assert not outcomes
            stages.fakes[2].answer(last)
            await trio.sleep(1)
            if reason:
                with pytest.raises(InvalidAdapter, match=reason):
                    outcomes[0].unwrap()
                assert [fake.adapters for fake in stages.fakes] == [[LOAD, DROP]] * 3
            else:
                facts = outcomes[0].unwrap()
                assert facts == loaded(rank=16, num_bytes=30).facts
                executor.drop_adapter(4)
                await trio.sleep(1)
                assert [fake.adapters for fake in stages.fakes] == [[LOAD, DROP]] * 3
            nursery.cancel_scope.cancel()


async def test_a_cancelled_load_leaves_nothing_and_late_answers_change_nothing(
    autojump_clock: object,
) -> None:
    async with open_stages(2) as stages, trio.open_nursery() as nursery:
        executor = drive(stages)
        await nursery.start(executor.run)
        with trio.move_on_after(1) as scope:
            await executor.load_adapter(FRENCH)
        assert scope.cancelled_caught
        await trio.sleep(1)
        assert [fake.adapters for fake in stages.fakes] == [[LOAD, DROP]] * 2
        for fake in stages.fakes:
            fake.answer(loaded())
        handle = executor.submit(plan_of(0), ignore)
        await trio.sleep(1)
        assert handle.is_done
        nursery.cancel_scope.cancel()


def make_pipeline(stages: Stages) -> Pipeline:
    return Pipeline(
        stages=tuple(stages.peers),
        info=make_info(),
        device_type="cpu",
        blocks=CacheBlocks(num_blocks=5),
        max_num_seqs=4,
    )


@pytest.mark.parametrize("runs_ahead", [True, False])
async def test_stages_are_connected_all_at_once_and_then_driven(
    autojump_clock: object, runs_ahead: bool
) -> None:
    """One step for each of them, and one more if steps are planned ahead."""
    config = build_config(
        EngineConfig,
        {"async_scheduling": runs_ahead, "pipeline_parallel_size": 3},
    )
    async with open_stages(3, is_ready=False) as stages:
        executor = await make_pipeline(stages).connect(config, 77)
        assert executor.depth == 3 + runs_ahead
        expected = Allocate(
            blocks=CacheBlocks(num_blocks=5), max_num_seqs=4, max_model_len=77
        )
        assert [fake.allocated for fake in stages.fakes] == [expected] * 3
        async with trio.open_nursery() as nursery:
            await nursery.start(executor.run)
            handle = executor.submit(plan_of(0), ignore)
            await trio.sleep(1)
            assert handle.is_done
            nursery.cancel_scope.cancel()


async def test_a_stage_that_hangs_up_before_it_is_ready_is_named(
    autojump_clock: object,
) -> None:
    async with open_stages(3, is_ready=False) as stages:
        stages.fakes[1].hang_up()
        with pytest.raises(StageDied, match="stage 1 was ended by SIGKILL"):
            await make_pipeline(stages).connect(EngineConfig(), 77)


async def test_a_wrong_model_gives_the_same_error_as_in_one_process(
    helper: WarmClient,
) -> None:
    config = build_config(
        EngineConfig, {"model": "/no/such/folder", "pipeline_parallel_size": 2}
    )
    # The helper, and servers that other tests share, are children, too.
    helper.connect()
    before = set(psutil.Process().children())
    with trio.fail_after(60), pytest.raises(WeightsNotFound, match="/no/such/folder"):
        async with open_pipeline(config):
            raise AssertionError("there is no model")
    assert set(psutil.Process().children()) == before
