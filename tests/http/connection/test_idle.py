"""A connection is closed when it was idle for too long, and not before."""

from __future__ import annotations

from hypercorn.trio.worker_context import EventWrapper
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trioserve.http.connection.exchange import FIRST_HEAD_SECONDS, IdleWatch


@pytest.fixture
def stopping() -> EventWrapper:
    return EventWrapper()


@pytest.fixture
async def watch(stopping: EventWrapper) -> IdleWatch:
    watch = IdleWatch(60.0, stopping)
    watch.mark(is_idle=True)
    return watch


@pytest.fixture
async def due(watch: IdleWatch, nursery: trio.Nursery) -> trio.Event:
    due = trio.Event()

    async def wait() -> None:
        await watch.wait_due()
        due.set()

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    return due


async def test_a_connection_without_a_request_is_due_soon(
    watch: IdleWatch, autojump_clock: trio.testing.MockClock
) -> None:
    await watch.wait_due()
    assert trio.current_time() == FIRST_HEAD_SECONDS


async def test_a_busy_connection_is_not_due(
    watch: IdleWatch, due: trio.Event, autojump_clock: trio.testing.MockClock
) -> None:
    await trio.sleep(4)
    watch.mark(is_idle=False)
    await trio.sleep(1000)
    assert not due.is_set()
    watch.mark(is_idle=True)
    await trio.sleep(59)
    assert not due.is_set()
    await due.wait()
    assert trio.current_time() == 1064.0


async def test_a_stopping_server_closes_idle_connections_at_once(
    due: trio.Event, stopping: EventWrapper, mock_clock: trio.testing.MockClock
) -> None:
    await stopping.set()
    await wait_all_tasks_blocked()
    assert due.is_set()


async def test_a_stopping_server_waits_for_a_busy_connection(
    watch: IdleWatch,
    due: trio.Event,
    stopping: EventWrapper,
    mock_clock: trio.testing.MockClock,
) -> None:
    watch.mark(is_idle=False)
    await stopping.set()
    await wait_all_tasks_blocked()
    assert not due.is_set()
    watch.mark(is_idle=True)
    await wait_all_tasks_blocked()
    assert due.is_set()
