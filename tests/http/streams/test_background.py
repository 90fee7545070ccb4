"""Tasks in the background: errors before their start, and after it."""

from __future__ import annotations

import pytest
import trio

from trioserve.errors import BackgroundFull
from trioserve.http.streams.background import BackgroundTasks


async def test_an_error_behind_the_start_is_logged_once_and_ends_no_other_task(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    ended = []

    async def fail(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep(1)
        raise RuntimeError("a defect")

    async def work(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep(2)
        ended.append("work")

    async with trio.open_nursery() as nursery:
        tasks = BackgroundTasks(2)
        await nursery.start(tasks.run)
        await tasks.start(fail)
        await tasks.start(work)
        await trio.sleep(3)
        assert tasks.num_running == 0
        nursery.cancel_scope.cancel()
    assert ended == ["work"]
    [record] = caplog.records
    assert record.exc_info is not None


async def test_an_error_before_the_start_goes_to_the_caller() -> None:
    async def fail(*, task_status: trio.TaskStatus[None]) -> None:
        raise RuntimeError("a defect")

    async with trio.open_nursery() as nursery:
        tasks = BackgroundTasks(2)
        await nursery.start(tasks.run)
        with pytest.raises(RuntimeError, match="a defect"):
            await tasks.start(fail)
        assert tasks.num_running == 0
        nursery.cancel_scope.cancel()


async def test_a_client_that_holds_all_places_is_refused_and_no_other_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def work(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep(10)

    async with trio.open_nursery() as nursery:
        tasks = BackgroundTasks(4)
        await nursery.start(tasks.run)
        for client, num_tasks in (("ann", 4), ("bob", 2), ("carl", 2)):
            for _ in range(num_tasks):
                await tasks.start(work, client)
            with pytest.raises(BackgroundFull):
                await tasks.start(work, client)
        assert tasks.num_running == 8
        await trio.sleep(11)
        assert tasks.num_running == 0
        nursery.cancel_scope.cancel()
