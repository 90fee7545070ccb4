"""The order of work, in virtual time."""

from __future__ import annotations

from hypothesis import given, strategies as st
import pytest
import trio
import trio.testing
from trio.testing import MockClock, wait_all_tasks_blocked

from trioserve.render.workers.turns import RenderTurn, RenderTurns, TurnQueue

LONG = 0.5
SHORT = 0.04


async def work(turns: RenderTurns, done: list[str], name: str, seconds: float) -> None:
    """Work for exactly the expected time."""
    async with turns.hold(seconds):
        await trio.sleep(seconds)
    done.append(name)


async def test_short_work_waits_for_one_long_work_at_most(
    autojump_clock: MockClock,
) -> None:
    """This holds however long the other works have waited."""
    turns, done = RenderTurns(trio.CapacityLimiter(1)), list[str]()
    async with trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(work, turns, done, "long", LONG)
        for num_long in (0, 25, 50):
            await trio.sleep(LONG * (num_long + 0.5) - trio.current_time())
            nursery.start_soon(work, turns, done, f"short {num_long}", SHORT)
    assert done.index("short 0") == 1
    assert done.index("short 25") <= 27
    assert done.index("short 50") <= 53


async def test_long_work_has_half_of_the_time_if_short_work_never_ends(
    autojump_clock: MockClock,
) -> None:
    turns, done = RenderTurns(trio.CapacityLimiter(1)), list[str]()
    with trio.move_on_after(40.0):
        async with trio.open_nursery() as nursery:
            for name, seconds in (("long", LONG), ("short", SHORT)):
                for _ in range(int(40.0 / seconds)):
                    nursery.start_soon(work, turns, done, name, seconds)
    assert done.count("long") * LONG == pytest.approx(20.0, abs=LONG)
    assert done.count("short") * SHORT == pytest.approx(20.0, abs=LONG)


async def test_a_class_does_not_save_up_time_without_work(
    autojump_clock: MockClock,
) -> None:
    turns, done = RenderTurns(trio.CapacityLimiter(1)), list[str]()
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(work, turns, done, "long", LONG)
        await trio.sleep(20.0)
        for _ in range(100):
            nursery.start_soon(work, turns, done, "short", SHORT)
        await trio.sleep(4.0)
        # Short work gets half of the four seconds.
        assert done.count("short") < 60


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.3, 5.0, 1e9])
def test_within_a_class_the_first_to_come_runs_first(seconds: float) -> None:
    queue = TurnQueue()
    turns = [queue.add(seconds) for _ in range(9)]
    assert [queue.pop(takes_long=True) for _ in range(9)] == turns


async def test_long_work_leaves_the_last_place_to_short_work(
    autojump_clock: MockClock,
) -> None:
    turns, done = RenderTurns(trio.CapacityLimiter(3)), list[str]()
    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(work, turns, done, "long", LONG)
        await wait_all_tasks_blocked()
        assert turns.num_waiting == 4
        for _ in range(5):
            nursery.start_soon(work, turns, done, "short", SHORT)
        await trio.sleep(5.5 * SHORT)
        assert done == ["short"] * 5


async def test_long_work_gets_its_place_though_the_others_are_never_free(
    autojump_clock: MockClock,
) -> None:
    turns, done = RenderTurns(trio.CapacityLimiter(2)), list[str]()
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(work, turns, done, "short", SHORT)
        await wait_all_tasks_blocked()
        nursery.start_soon(work, turns, done, "long", LONG)
        while "long" not in done:
            nursery.start_soon(work, turns, done, "short", SHORT)
            await trio.sleep(SHORT / 3)
        nursery.cancel_scope.cancel()
    assert turns.num_waiting == 0


async def test_a_turn_that_is_left_makes_room_for_others(
    autojump_clock: MockClock,
) -> None:
    limiter = trio.CapacityLimiter(1)
    turns, done = RenderTurns(limiter), list[str]()

    async def leave_after(seconds: float) -> None:
        with trio.move_on_after(seconds):
            await work(turns, done, "never", 100.0)

    async with trio.open_nursery() as nursery:
        for seconds in (2.0, 1.0):
            nursery.start_soon(leave_after, seconds)
            await wait_all_tasks_blocked()
        nursery.start_soon(work, turns, done, "last", SHORT)
        await wait_all_tasks_blocked()
        assert (limiter.borrowed_tokens, turns.num_waiting) == (1, 2)
    assert done == ["last"]
    assert trio.current_time() == pytest.approx(2.0 + SHORT)
    assert (limiter.borrowed_tokens, turns.num_waiting) == (0, 0)


async def test_a_turn_that_is_cancelled_at_its_start_is_given_back(
    autojump_clock: MockClock,
) -> None:
    limiter = trio.CapacityLimiter(1)
    turns, done = RenderTurns(limiter), list[str]()
    with trio.CancelScope() as scope:
        scope.cancel()
        await work(turns, done, "never", SHORT)
    assert (done, limiter.borrowed_tokens, turns.num_waiting) == ([], 0, 0)


async def test_more_places_are_taken_at_once(autojump_clock: MockClock) -> None:
    limiter = trio.CapacityLimiter(1)
    turns, done = RenderTurns(limiter), list[str]()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(work, turns, done, "short", SHORT)
        await wait_all_tasks_blocked()
        turns.resize(3)
        assert limiter.borrowed_tokens == 3


@given(
    steps=st.lists(
        st.sampled_from([0.0, 0.01, 1.0, 9.0])
        | st.sampled_from(["pop", "pop short", "leave"])
    )
)
def test_a_waiting_turn_leaves_the_queue_once(steps: list[float | str]) -> None:
    queue, waiting = TurnQueue(), list[RenderTurn]()
    for step in steps:
        if isinstance(step, float):
            waiting.append(queue.add(step))
        elif step == "leave" and waiting:
            queue.discard(waiting.pop(len(waiting) // 2))
        elif step != "leave":
            turn = queue.pop(takes_long=step == "pop")
            allowed = [turn for turn in waiting if step == "pop" or not turn.is_long]
            assert (turn is None) == (not allowed)
            if turn is not None:
                allowed.remove(turn)
                waiting.remove(turn)
        assert len(queue) == len(waiting)
