"""The stalls of the event loop, and the tasks that cause them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
import itertools
import math
import time

from hypothesis import given, strategies as st
import pytest
import trio

from trioserve.observe import LoopStall
from trioserve.observe.durations import BOUNDS, Tally
from trioserve.observe.offenders import OTHERS, OffenderTable

SECONDS = st.one_of(st.sampled_from(BOUNDS), st.floats(0, 2))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run_step(stall: LoopStall, clock: Clock, seconds: float) -> None:
    task = trio.lowlevel.current_task()
    stall.before_task_step(task)
    clock.now += seconds
    stall.after_task_step(task)


@given(st.lists(SECONDS), st.floats(0, 2))
def test_a_tally_counts_each_duration_in_its_bucket(
    durations: list[float], quick_limit: float
) -> None:
    tally = Tally(quick_limit=quick_limit)
    for seconds in durations:
        if seconds <= tally.quick_limit:
            assert seconds <= quick_limit
            tally.num_quick += 1
            tally.quick_seconds += seconds
        else:
            tally.add(seconds)
    seen = tally.statistics()
    counts = [0] * (len(BOUNDS) + 1)
    for seconds in durations:
        counts[bisect_left(BOUNDS, seconds)] += 1
    assert seen.counts == tuple(counts)
    assert seen.num_durations == len(durations)
    assert seen.longest_seconds == max(durations, default=0)
    assert math.isclose(seen.total_seconds, sum(durations), abs_tol=1e-9)


NAMES = st.sampled_from("abcdefgh") | st.text(max_size=9).filter(OTHERS.__ne__)


@given(st.integers(1, 4), st.lists(st.tuples(NAMES, st.floats(0.001, 2))))
def test_the_table_keeps_the_names_with_the_longest_steps_and_loses_nothing(
    size: int, steps: list[tuple[str, float]]
) -> None:
    table = OffenderTable(size)
    longest: dict[str, float] = defaultdict(float)
    for name, seconds in steps:
        table.add(name, seconds)
        longest[name] = max(longest[name], seconds)
    rows = table.list_offenders()
    named = [row for row in rows if row.name != OTHERS]
    assert len(named) == min(size, len(longest))
    assert [row.longest_seconds for row in named] == sorted(
        longest.values(), reverse=True
    )[:size]
    assert all(row.longest_seconds == longest[row.name] for row in named)
    assert sum(row.num_steps for row in rows) == len(steps)
    total = sum(seconds for _, seconds in steps)
    assert math.isclose(sum(row.total_seconds for row in rows), total, abs_tol=1e-9)


def test_a_task_with_the_name_of_the_rest_counts_as_the_rest() -> None:
    table = OffenderTable(1)
    for name in ("a", "b", OTHERS):
        table.add(name, 1.0)
    assert [(row.name, row.num_steps) for row in table.list_offenders()] == [
        ("a", 1),
        (OTHERS, 2),
    ]


def test_a_long_name_is_cut() -> None:
    table = OffenderTable(2)
    table.add("x" * 10**6, 1.0)
    (row,) = table.list_offenders()
    assert len(row.name) == 200


async def test_only_steps_over_the_threshold_are_offences() -> None:
    clock = Clock()
    stall = LoopStall(threshold_seconds=0.5, clock=clock)
    for seconds in (0.25, 0.5, 0.75, 2.0):
        run_step(stall, clock, seconds)
    (offender,) = stall.statistics().offenders
    assert offender.name == trio.lowlevel.current_task().name
    assert (offender.num_steps, offender.total_seconds) == (2, 2.75)
    assert stall.statistics().steps.num_durations == 4
    assert stall.statistics().steps.longest_seconds == 2.0


async def test_a_threshold_below_the_first_bucket_is_kept() -> None:
    clock = Clock()
    stall = LoopStall(threshold_seconds=0.0, clock=clock)
    for seconds in (2.0, 2**-16, 2**-17, 0.0):
        run_step(stall, clock, seconds)
    (offender,) = stall.statistics().offenders
    assert offender.num_steps == 3


async def test_a_step_that_began_before_the_instrument_does_not_count() -> None:
    """An instrument is always added in the middle of a step and of a turn."""
    clock = Clock()
    stall = LoopStall(clock=clock)
    fresh = stall.statistics()
    clock.now += 1
    stall.after_task_step(trio.lowlevel.current_task())
    stall.before_io_wait(0)
    assert stall.statistics() == fresh


async def test_a_reset_forgets_all_and_the_step_under_way() -> None:
    clock = Clock()
    stall = LoopStall(clock=clock)
    fresh = stall.statistics()
    run_step(stall, clock, 1.0)
    stall.before_task_step(trio.lowlevel.current_task())
    stall.reset()
    stall.after_task_step(trio.lowlevel.current_task())
    assert stall.statistics() == fresh


async def test_the_lines_for_a_log_name_the_worst_task() -> None:
    clock = Clock()
    stall = LoopStall(clock=clock, num_offenders=1)
    assert len(stall.describe().splitlines()) == 2
    run_step(stall, clock, 0.25)
    run_step(stall, clock, 0.5)
    name = trio.lowlevel.current_task().name
    assert stall.describe().splitlines() == [
        "2 task steps, longest 500 ms",
        "0 loop turns, longest 0 ms",
        f"over 5 ms: {name} 2 x, longest 500 ms, 750 ms in all",
    ]


@pytest.mark.parametrize(
    "options",
    [{"threshold_seconds": -1}, {"threshold_seconds": math.nan}, {"num_offenders": 0}],
)
def test_senseless_arguments_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        LoopStall(**options)


async def block() -> None:
    # The instrument exists to find such blocking calls.
    time.sleep(0.02)  # noqa: ASYNC251


async def block_and_fail() -> None:
    await block()
    raise OSError("in the middle of a step")


async def block_when_cancelled() -> None:
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        time.sleep(0.02)  # noqa: ASYNC251
        raise


def count_from(bound: float, counts: tuple[int, ...]) -> int:
    """Return the number of durations above a bound."""
    return sum(counts[BOUNDS.index(bound) + 1 :])


async def test_a_task_that_blocks_is_counted_and_named() -> None:
    stall = LoopStall()
    trio.lowlevel.add_instrument(stall)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.lowlevel.checkpoint)
        nursery.start_soon(block)
    await trio.lowlevel.checkpoint()
    trio.lowlevel.remove_instrument(stall)
    seen = stall.statistics()
    assert count_from(0.02, seen.steps.counts) >= 1
    assert count_from(0.02, seen.turns.counts) >= 1
    names = {row.name: row for row in seen.offenders}
    assert names[f"{__name__}.block"].longest_seconds >= 0.02


def test_a_step_that_ends_in_an_error_or_a_cancellation_is_counted() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(block_when_cancelled)
            nursery.start_soon(block_and_fail)

    stall = LoopStall()
    with pytest.RaisesGroup(OSError):
        trio.run(main, instruments=[stall])
    names = {row.name: row.num_steps for row in stall.statistics().offenders}
    for task in (block_when_cancelled, block_and_fail):
        assert names[f"{__name__}.{task.__name__}"] >= 1


async def test_it_may_be_added_and_removed_in_a_step() -> None:
    # The clock advances by one second each time it is read.
    stall = LoopStall(clock=itertools.count().__next__)
    for _ in range(3):
        stall.reset()
        trio.lowlevel.add_instrument(stall)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        # trio removes an instrument that raises; then this would raise KeyError.
        trio.lowlevel.remove_instrument(stall)
        # Only the step between the checkpoints has a beginning and an end.
        assert stall.statistics().steps.total_seconds == 1
        assert stall.statistics().turns.num_durations == 1


def test_one_object_may_watch_one_run_after_another() -> None:
    async def main() -> None:
        trio.lowlevel.add_instrument(stall)
        await trio.lowlevel.checkpoint()

    clock = Clock()
    stall = LoopStall(clock=clock)
    trio.run(main)
    clock.now += 100
    trio.run(main)
    assert stall.statistics().steps.longest_seconds == 0
    assert stall.statistics().turns.longest_seconds == 0
