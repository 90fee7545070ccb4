"""Calls that do not end: real threads, but time limits in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
import math
import threading
import time

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from trioserve.errors import RendererStuck
from trioserve.render.workers.threads import RendererWorkers, TookTooLong


@dataclass
class GatedCall:
    """Blocks its thread until the gate is open."""

    gate: threading.Event = field(default_factory=threading.Event)
    num_calls: int = 0

    def __call__(self) -> int:
        self.num_calls += 1
        assert self.gate.wait(30)
        return 42


def stop_the_clock(clock: MockClock) -> None:
    """Stop the clock, which would otherwise jump to the limit while a thread works."""
    clock.autojump_threshold = math.inf


async def wait_until_nothing_is_abandoned(workers: RendererWorkers) -> None:
    for _ in range(10_000):
        if workers.statistics().abandoned == 0:
            return
        # Threads need real time to end.
        await trio.to_thread.run_sync(time.sleep, 0.001)
    raise AssertionError("an abandoned thread has ended and is still counted")


async def test_a_call_that_does_not_end_makes_room_for_the_next(
    autojump_clock: MockClock,
) -> None:
    workers = RendererWorkers(1)
    endless = GatedCall()
    with pytest.raises(TookTooLong):
        await workers.run_limited(endless, 10.0)
    assert trio.current_time() == pytest.approx(10.0, abs=0.1)
    assert workers.statistics().abandoned == 1
    assert await workers.run(lambda: "next") == "next"
    assert workers.statistics().busy == 0
    endless.gate.set()
    await wait_until_nothing_is_abandoned(workers)


async def test_waiting_for_a_worker_does_not_count(autojump_clock: MockClock) -> None:
    workers = RendererWorkers(1)
    first = GatedCall()
    results: list[str] = []

    async def wait_and_run() -> None:
        results.append(await workers.run_limited(lambda: "second", 10.0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(workers.run, first)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(wait_and_run)
        await trio.sleep(1000)
        stop_the_clock(autojump_clock)
        first.gate.set()
    assert results == ["second"]


async def test_limited_calls_are_refused_while_too_many_are_abandoned(
    autojump_clock: MockClock,
) -> None:
    workers = RendererWorkers(1)
    endless, late = GatedCall(), GatedCall()
    for _ in range(2):
        assert not workers.is_stuck
        with pytest.raises(TookTooLong):
            await workers.run_limited(endless, 10.0)
    assert workers.is_stuck
    with pytest.raises(RendererStuck):
        await workers.run_limited(late, 10.0)
    assert late.num_calls == 0
    # Calls without a time limit still run.
    assert await workers.run(lambda: 1) == 1
    endless.gate.set()
    await wait_until_nothing_is_abandoned(workers)
    assert not workers.is_stuck
    stop_the_clock(autojump_clock)
    assert await workers.run_limited(lambda: 2, 10.0) == 2


async def test_calls_that_wait_while_the_workers_get_stuck_are_refused(
    autojump_clock: MockClock,
) -> None:
    workers = RendererWorkers(1)
    endless = GatedCall()
    async with trio.open_nursery() as nursery:
        for error in (TookTooLong, TookTooLong, RendererStuck):

            async def call(error: type[Exception] = error) -> None:
                with pytest.raises(error):
                    await workers.run_limited(endless, 10.0)

            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
    endless.gate.set()
    await wait_until_nothing_is_abandoned(workers)
    assert endless.num_calls == 2


async def test_a_cancelled_call_is_waited_for_until_its_limit(
    autojump_clock: MockClock,
) -> None:
    workers = RendererWorkers(1)
    endless = GatedCall()
    with trio.move_on_after(1.0) as scope:
        with pytest.raises(TookTooLong):
            await workers.run_limited(endless, 10.0)
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(10.0, abs=0.1)
    endless.gate.set()
    await wait_until_nothing_is_abandoned(workers)


async def test_an_error_in_the_thread_is_the_callers() -> None:
    workers = RendererWorkers(1)
    with pytest.raises(ZeroDivisionError):
        await workers.run_limited(lambda: 1 // 0, 10.0)
    assert workers.statistics().busy == 0


async def test_workers_can_be_added_while_calls_wait() -> None:
    workers = RendererWorkers(1)
    first, second = GatedCall(), GatedCall()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(workers.run, first)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(workers.run, second)
            await trio.testing.wait_all_tasks_blocked()
            assert workers.statistics().waiting == 1
            workers.resize(2)
            await trio.testing.wait_all_tasks_blocked()
            statistics = workers.statistics()
            assert (statistics.workers, statistics.busy) == (2, 2)
            first.gate.set()
            second.gate.set()
    assert workers.statistics().busy == 0
