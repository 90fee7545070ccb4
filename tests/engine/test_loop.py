"""The order in which the loop plans, submits, updates and delivers."""

from __future__ import annotations

from collections.abc import Callable

import outcome
import pytest
import trio
import trio.testing

from trioserve.engine.loop import StepLoop
from trioserve.executor.protocol import Handle
from trioserve.testing.fake_device import FakeExecutor
from trioserve.types.output import StepResult
from trioserve.types.plan import StepPlan


class Planner:
    """Plans as many steps as there is work."""

    def __init__(
        self, events: list[str], num_steps: int, is_steady: bool = False
    ) -> None:
        self.events = events
        self.is_steady = is_steady
        self.num_left = num_steps
        self.seconds: list[float] = []
        self._num_planned = 0

    def schedule(self) -> StepPlan | None:
        if self.num_left == 0:
            return None
        self.num_left -= 1
        self._num_planned += 1
        return StepPlan(step_id=self._num_planned, starts=(), rows=())

    def update(self, plan: StepPlan, result: StepResult, seconds: float) -> str:
        assert plan.step_id == result.step_id
        self.events.append(f"update {plan.step_id}")
        self.seconds.append(seconds)
        return f"deliver {plan.step_id}"

    def list_started(self, plan: StepPlan) -> str:
        return ""


class Executor(FakeExecutor[StepPlan, StepResult]):
    def __init__(self, events: list[str], **options: object) -> None:
        super().__init__(
            lambda plan: StepResult(step_id=plan.step_id, sampled=()),
            **options,  # type: ignore[arg-type]
        )
        self._events = events

    def submit(self, plan: StepPlan, notify: Callable[[], None]) -> Handle[StepResult]:
        self._events.append(f"submit {plan.step_id}")
        return super().submit(plan, notify)


def list_events(depth: int, num_first: int) -> list[str]:
    """List the events of nine steps, in order.

    Args:
      num_first: those that are submitted at once.
    """
    num_submitted = num_first
    events = [f"submit {number}" for number in range(1, num_submitted + 1)]
    for number in range(1, 10):
        events.append(f"update {number}")
        while num_submitted < min(9, number + depth):
            num_submitted += 1
            events.append(f"submit {num_submitted}")
        events.append(f"deliver {number}")
    return events


@pytest.mark.parametrize("depth", [1, 2, 4])
async def test_the_device_has_its_next_step_before_readers_have_this_ones_tokens(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, depth: int
) -> None:
    events: list[str] = []
    executor = Executor(events, depth=depth, step_seconds=1.0)
    planner = Planner(events, 9)
    loop = StepLoop(executor, planner)
    await nursery.start(loop.run, events.append)
    await trio.sleep(10)
    # One place stays free for a request that comes while the first step runs.
    assert events == list_events(depth, max(1, depth - 1))
    # The scheduler bounds steps by these.
    assert planner.seconds == [1.0] * 9
    assert executor.idle_seconds == 0


@pytest.mark.parametrize(
    ("step_seconds", "is_steady", "depth"),
    [(0.004, True, 3), (0.006, True, 2), (0.004, False, 2)],
)
async def test_quick_and_steady_steps_have_one_more_in_flight(
    nursery: trio.Nursery,
    autojump_clock: trio.abc.Clock,
    step_seconds: float,
    is_steady: bool,
    depth: int,
) -> None:
    events: list[str] = []
    executor = Executor(events, depth=2, max_depth=3, step_seconds=step_seconds)
    loop = StepLoop(executor, Planner(events, 9, is_steady))
    await nursery.start(loop.run, events.append)
    await trio.sleep(1)
    # Nobody knows how long the first one takes.
    assert events == list_events(depth, num_first=1)


async def test_requests_that_come_while_a_step_runs_are_planned_together(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """If the first one were planned at once, the others would wait one more step."""
    events: list[str] = []
    planner = Planner(events, 1)
    executor = Executor(events, depth=2, step_seconds=1.0)
    loop = StepLoop(executor, planner)
    await nursery.start(loop.run, events.append)
    for _ in range(3):
        await trio.sleep(0.25)
        planner.num_left = 1
        loop.wake()
    await trio.testing.wait_all_tasks_blocked()
    assert events == ["submit 1"]
    await trio.sleep(0.5)
    assert events == ["submit 1", "update 1", "submit 2", "deliver 1"]


async def test_every_stage_of_a_pipeline_has_work_at_once(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """Three stages have four steps in flight: the last one is ready to run."""
    events: list[str] = []
    planner = Planner(events, 1)
    executor = Executor(events, depth=4, step_seconds=1.0)
    loop = StepLoop(executor, planner)
    await nursery.start(loop.run, events.append)
    await trio.testing.wait_all_tasks_blocked()
    for number in (2, 3, 4):
        planner.num_left = 1
        loop.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert events[-1] == f"submit {min(number, 3)}"
    assert trio.current_time() == 0.0


async def test_a_device_that_is_always_done_lets_others_run(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """Twenty turns of another task take about twenty steps, and not more."""

    class Instant(FakeExecutor[StepPlan, StepResult]):
        def submit(
            self, plan: StepPlan, notify: Callable[[], None]
        ) -> Handle[StepResult]:
            handle = Handle[StepResult](notify)
            handle.set(outcome.Value(StepResult(step_id=plan.step_id, sampled=())))
            return handle

    planner = Planner([], 10**6)
    loop = StepLoop(Instant(lambda plan: None), planner)  # type: ignore[arg-type, return-value]
    await nursery.start(loop.run, lambda outputs: None)
    for _ in range(20):
        await trio.lowlevel.checkpoint()
    assert 10**6 - planner.num_left < 60
