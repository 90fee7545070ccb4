"""Calls that run at the same time, and end together after a failure."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock

from trioserve.errors import InvalidParameter
from trioserve.render import run_together


async def sleep_for(seconds: float) -> float:
    await trio.sleep(seconds)
    return seconds


async def fail_after(seconds: float) -> float:
    await trio.sleep(seconds)
    raise InvalidParameter("prompt", "is wrong")


async def test_results_are_in_the_order_of_the_calls(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    seconds = [3.0, 1.0, 2.0]
    assert await run_together([partial(sleep_for, s) for s in seconds]) == seconds
    assert trio.current_time() - began == 3.0
    assert await run_together([]) == []


async def test_the_first_failure_ends_the_others(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    with pytest.raises(InvalidParameter, match="is wrong"):
        await run_together([partial(sleep_for, 100.0), partial(fail_after, 1.0)])
    assert trio.current_time() - began == 1.0
    # A single call, and two failures in the same turn of the loop, make no group.
    for num_calls in (1, 2):
        with pytest.raises(InvalidParameter):
            await run_together([partial(fail_after, 1.0)] * num_calls)


async def test_a_defect_is_not_taken_for_the_requests_fault() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError):
        await run_together([fail, partial(sleep_for, 1.0)])  # type: ignore[list-item]
