"""Steps in real threads."""

from __future__ import annotations

from queue import SimpleQueue
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from trioserve.errors import InvalidAdapter
from trioserve.executor import LocalExecutor, make_local_executor
from trioserve.types.adapter import AdapterFacts, AdapterSource
from trioserve.types.output import StepResult
from trioserve.types.plan import StepPlan


def plan_of(number: int) -> StepPlan:
    return StepPlan(step_id=number, starts=(), rows=())


def result_of(plan: StepPlan) -> StepResult:
    return StepResult(step_id=plan.step_id, sampled=())


class Submitted:
    """Steps that were submitted together, and their results."""

    def __init__(self, executor: LocalExecutor[StepPlan, StepResult], count: int):
        self._all_done = trio.Event()
        self._num_left = count
        self.notified_in: set[threading.Thread] = set()
        self.handles = [
            executor.submit(plan_of(number), self._notify) for number in range(count)
        ]

    async def wait_all_done(self) -> None:
        await self._all_done.wait()

    async def wait(self) -> list[StepResult]:
        await self.wait_all_done()
        return [handle.take() for handle in self.handles]

    def _notify(self) -> None:
        self.notified_in.add(threading.current_thread())
        self._num_left -= 1
        if self._num_left == 0:
            self._all_done.set()


async def test_steps_run_in_order_off_the_loop(nursery: trio.Nursery) -> None:
    ran: list[tuple[int, bool]] = []

    def step(plan: StepPlan) -> StepResult:
        on_loop = threading.current_thread() is threading.main_thread()
        ran.append((plan.step_id, on_loop))
        return result_of(plan)

    executor = LocalExecutor[StepPlan, StepResult](step)
    await nursery.start(executor.run)
    submitted = Submitted(executor, 20)
    with trio.fail_after(60):
        results = await submitted.wait()
    assert [result.step_id for result in results] == list(range(20))
    assert ran == [(number, False) for number in range(20)]
    assert submitted.notified_in == {threading.main_thread()}


async def test_the_next_step_is_launched_before_this_one_is_finished(
    nursery: trio.Nursery,
) -> None:
    """Step 0 can be finished only after step 1 was launched: one thread would hang."""
    launched: SimpleQueue[int] = SimpleQueue()
    second_launched = threading.Event()

    def launch(plan: StepPlan) -> StepPlan:
        launched.put(plan.step_id)
        if plan.step_id == 1:
            second_launched.set()
        return plan

    def finish(plan: StepPlan) -> StepResult:
        assert second_launched.wait(10)
        return result_of(plan)

    executor = LocalExecutor[StepPlan, StepResult](launch, finish, depth=2)
    await nursery.start(executor.run)
    submitted = Submitted(executor, 4)
    with trio.fail_after(60):
        results = await submitted.wait()
    assert [result.step_id for result in results] == [0, 1, 2, 3]
    assert [launched.get() for _ in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("at_launch", [True, False])
async def test_a_failing_step_raises_where_its_result_is_taken(
    nursery: trio.Nursery, at_launch: bool
) -> None:
    def launch(plan: StepPlan) -> StepPlan:
        if at_launch and plan.step_id == 1:
            raise ZeroDivisionError("device")
        return plan

    def finish(plan: StepPlan) -> StepResult:
        if plan.step_id == 1:
            raise ZeroDivisionError("device")
        return result_of(plan)

    executor = LocalExecutor[StepPlan, StepResult](launch, finish, depth=2)
    await nursery.start(executor.run)
    submitted = Submitted(executor, 2)
    with trio.fail_after(60):
        await submitted.wait_all_done()
    assert submitted.handles[0].take().step_id == 0
    with pytest.raises(ZeroDivisionError):
        submitted.handles[1].take()


@pytest.mark.parametrize("num_stages", [1, 2])
async def test_cancelling_waits_for_the_step_on_the_device(num_stages: int) -> None:
    begun, go_on = threading.Event(), threading.Event()
    ended = []

    def launch(plan: StepPlan) -> StepPlan:
        begun.set()
        go_on.wait(10)
        ended.append(plan.step_id)
        return plan

    stages = [launch, result_of][:num_stages]
    executor = LocalExecutor[StepPlan, StepResult](*stages, depth=2)
    with trio.fail_after(60):
        async with trio.open_nursery() as host:
            await host.start(executor.run)
            Submitted(executor, 2)
            await trio.to_thread.run_sync(begun.wait)
            host.cancel_scope.cancel()
            # Wait until the executor has noticed the cancellation.
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            go_on.set()
    assert ended == [0]


async def test_an_adapter_is_read_beside_the_steps_and_changes_between_two_of_them(
    nursery: trio.Nursery,
) -> None:
    happened: list[object] = []
    threads: dict[str, int] = {}
    reading, stepping = threading.Event(), threading.Event()

    class Adapters:
        def read_adapter(self, source: AdapterSource) -> tuple[AdapterFacts, str]:
            threads["read"] = threading.get_ident()
            reading.set()
            # A step runs meanwhile.
            stepping.wait(10)
            facts = AdapterFacts(
                number=source.number, name="a", digest=b"1", rank=1, num_bytes=1
            )
            return facts, "weights"

        def add_adapter(self, number: int, weights: str) -> None:
            threads["add"] = threading.get_ident()
            happened.append((number, weights))

        def remove_adapter(self, number: int) -> None:
            happened.append(("removed", number))

    def step(plan: StepPlan) -> StepResult:
        threads["step"] = threading.get_ident()
        reading.wait(10)
        stepping.set()
        happened.append(plan.step_id)
        return result_of(plan)

    executor = LocalExecutor[StepPlan, StepResult](step, depth=2, adapters=Adapters())
    await nursery.start(executor.run)
    with trio.fail_after(60):
        before = Submitted(executor, 1)
        source = AdapterSource(number=5, name="a", path="")
        assert (await executor.load_adapter(source)).number == 5
        behind = Submitted(executor, 2)
        executor.drop_adapter(5)
        after = Submitted(executor, 1)
        for submitted in (before, behind, after):
            await submitted.wait()
    assert happened == [0, (5, "weights"), 0, 1, ("removed", 5), 0]
    assert threads["add"] == threads["step"] != threads["read"]


async def test_a_model_that_pools_refuses_adapters() -> None:
    executor = LocalExecutor[StepPlan, StepResult](result_of)
    with pytest.raises(InvalidAdapter, match="'a': a model that pools"):
        await executor.load_adapter(AdapterSource(number=1, name="a", path=""))


@pytest.mark.parametrize(
    ("device_type", "depth", "max_depth"),
    [("cpu", 2, 2), ("cuda", 1, 1), ("cuda", 2, 3)],
)
def test_a_device_beside_the_host_may_have_one_more_step(
    device_type: str, depth: int, max_depth: int
) -> None:
    runner: Any = SimpleNamespace(step=None, launch=None)
    executor = make_local_executor(runner, device_type, depth=depth)
    assert (executor.depth, executor.max_depth) == (depth, max_depth)
