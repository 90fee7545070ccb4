"""Steps in a real thread."""

from __future__ import annotations

import threading

import pytest
import trio

from trioserve.executor import LocalExecutor
from trioserve.steps import StepPlan, StepResult


def plan_of(number: int) -> StepPlan:
    return StepPlan(step_id=number, starts=(), rows=())


async def test_steps_run_in_order_off_the_loop(nursery: trio.Nursery) -> None:
    ran: list[tuple[int, bool]] = []

    def step(plan: StepPlan) -> StepResult:
        on_loop = threading.current_thread() is threading.main_thread()
        ran.append((plan.step_id, on_loop))
        return StepResult(step_id=plan.step_id, sampled=())

    executor = LocalExecutor(step)
    await nursery.start(executor.run)
    handles = [executor.submit(plan_of(number)) for number in range(20)]
    results = []
    with trio.fail_after(10):
        for handle in handles:
            results.append(await handle.wait())
    assert [result.step_id for result in results] == list(range(20))
    assert ran == [(number, False) for number in range(20)]


async def test_a_failing_step_raises_in_whoever_waits(nursery: trio.Nursery) -> None:
    def step(plan: StepPlan) -> StepResult:
        raise ZeroDivisionError("device")

    executor = LocalExecutor(step)
    await nursery.start(executor.run)
    with trio.fail_after(10), pytest.raises(ZeroDivisionError):
        await executor.submit(plan_of(1)).wait()


async def test_cancelling_waits_for_the_step_on_the_device(
    nursery: trio.Nursery,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    ended = []

    def step(plan: StepPlan) -> StepResult:
        begun.set()
        go_on.wait(10)
        ended.append(plan.step_id)
        return StepResult(step_id=plan.step_id, sampled=())

    executor = LocalExecutor(step)
    with trio.fail_after(20):
        async with trio.open_nursery() as host:
            await host.start(executor.run)
            executor.submit(plan_of(1))
            executor.submit(plan_of(2))
            await trio.to_thread.run_sync(begun.wait)
            host.cancel_scope.cancel()
            go_on.set()
    assert ended == [1]
