"""An HTTP process that has stopped is ended, and one that works is not."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from trioserve.processes.silence import SilenceWatch


class Process:
    """A process, and the time of its end."""

    def __init__(self) -> None:
        self.ended_at: float | None = None

    async def end(self) -> None:
        await trio.lowlevel.checkpoint()
        self.ended_at = trio.current_time()


async def test_a_process_that_says_nothing_is_ended(autojump_clock: MockClock) -> None:
    process = Process()
    watch = SilenceWatch(process.end, limit=10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        # Imports may take longer.
        await trio.sleep(99.5)
        assert process.ended_at is None
        watch.begin()
        for _ in range(20):
            await trio.sleep(5)
            watch.note_message()
        last = trio.current_time()
        assert process.ended_at is None and not watch.has_ended
    assert watch.has_ended
    assert process.ended_at == pytest.approx(last + 10, abs=1)


async def test_a_process_is_not_ended_for_a_time_in_which_nobody_looked(
    mock_clock: MockClock,
) -> None:
    """Such as a machine whose processes were all stopped for a while."""
    process = Process()
    watch = SilenceWatch(process.end, limit=10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        watch.begin()
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(1000)
        await trio.testing.wait_all_tasks_blocked()
        assert process.ended_at is None
        watch.note_message()
        for second in range(10):
            assert process.ended_at is None, second
            mock_clock.jump(1)
            await trio.testing.wait_all_tasks_blocked()
    assert watch.has_ended
