"""In which order the loop plans, submits, takes in and hands out."""

from __future__ import annotations

from collections.abc import Callable

import outcome
import pytest
import trio
import trio.testing

from trioserve.engine.loop import StepLoop
from trioserve.executor.handle import Handle
from trioserve.testing.fake_device import FakeExecutor
from trioserve.types.output import StepResult
from trioserve.types.plan import StepPlan


class Planner:
    """Plans as many steps as there is work."""

    def __init__(self, story: list[str], num_steps: int) -> None:
        self.story = story
        self.num_left = num_steps
        self._num_planned = 0

    def schedule(self) -> StepPlan | None:
        if self.num_left == 0:
            return None
        self.num_left -= 1
        self._num_planned += 1
        return StepPlan(step_id=self._num_planned, starts=(), rows=())

    def update(self, plan: StepPlan, result: StepResult, seconds: float) -> str:
        assert plan.step_id == result.step_id
        self.story.append(f"update {plan.step_id}")
        return f"deliver {plan.step_id}"


class Executor(FakeExecutor[StepPlan, StepResult]):
    def __init__(self, story: list[str], **options: object) -> None:
        super().__init__(
            lambda plan: StepResult(step_id=plan.step_id, sampled=()),
            **options,  # type: ignore[arg-type]
        )
        self._story = story

    def submit(self, plan: StepPlan, notify: Callable[[], None]) -> Handle[StepResult]:
        self._story.append(f"submit {plan.step_id}")
        return super().submit(plan, notify)


def tell(depth: int) -> list[str]:
    """What becomes of nine steps."""
    # One place is kept for a request that comes while the first step runs.
    num_submitted = max(1, depth - 1)
    story = [f"submit {number}" for number in range(1, num_submitted + 1)]
    for number in range(1, 10):
        story.append(f"update {number}")
        while num_submitted < min(9, number + depth):
            num_submitted += 1
            story.append(f"submit {num_submitted}")
        story.append(f"deliver {number}")
    return story


@pytest.mark.parametrize("depth", [1, 2, 4])
async def test_the_device_has_its_next_step_before_readers_have_this_ones_tokens(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, depth: int
) -> None:
    story: list[str] = []
    executor = Executor(story, depth=depth, step_seconds=1.0)
    loop = StepLoop(executor, Planner(story, 9), story.append)
    await nursery.start(loop.run)
    await trio.sleep(10)
    assert story == tell(depth)
    assert executor.idle_seconds == 0


async def test_what_comes_while_a_step_runs_is_planned_together(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """With the first of them planned at once the others would wait for a step more."""
    story: list[str] = []
    planner = Planner(story, 1)
    executor = Executor(story, depth=2, step_seconds=1.0)
    loop = StepLoop(executor, planner, story.append)
    await nursery.start(loop.run)
    for _ in range(3):
        await trio.sleep(0.25)
        planner.num_left = 1
        loop.wake()
    await trio.testing.wait_all_tasks_blocked()
    assert story == ["submit 1"]
    await trio.sleep(0.5)
    assert story == ["submit 1", "update 1", "submit 2", "deliver 1"]


async def test_every_stage_of_a_pipeline_has_work_at_once(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """Three stages are four steps deep: the last lies ready."""
    story: list[str] = []
    planner = Planner(story, 1)
    executor = Executor(story, depth=4, step_seconds=1.0)
    loop = StepLoop(executor, planner, story.append)
    await nursery.start(loop.run)
    for number in (2, 3, 4):
        planner.num_left = 1
        loop.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert story[-1] == f"submit {min(number, 3)}"
    assert trio.current_time() == 0.0


async def test_a_device_that_is_always_done_lets_others_run(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """Twenty turns of another task take no longer than about as many steps."""

    class Instant(FakeExecutor[StepPlan, StepResult]):
        def submit(
            self, plan: StepPlan, notify: Callable[[], None]
        ) -> Handle[StepResult]:
            handle = Handle[StepResult](notify)
            handle.set(outcome.Value(StepResult(step_id=plan.step_id, sampled=())))
            return handle

    planner = Planner([], 10**6)
    loop = StepLoop(Instant(lambda plan: None), planner, lambda outputs: None)  # type: ignore[arg-type, return-value]
    await nursery.start(loop.run)
    for _ in range(20):
        await trio.lowlevel.checkpoint()
    assert 10**6 - planner.num_left < 60
