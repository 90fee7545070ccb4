"""The time after which a client may try again, from the speed of work."""

from __future__ import annotations

import pytest

from trioserve.types.pace import Pace


def work_off(
    pace: Pace, *, begin: float, seconds: float, rate: float, held: int = 1000
) -> float:
    """Finish and begin `rate` items a second; return the time of the end."""
    now = begin
    pace.observe(now, held)
    while now < begin + seconds:
        now += 1 / rate
        pace.observe(now, held - 1)
        pace.observe(now, held)
    return now


@pytest.mark.parametrize(
    ("rate", "amount", "seconds"),
    [(10.0, 200, 20), (0.5, 10, 20), (10.0, 1, 1), (10.0, 0, 1), (2.0, 1000, 60)],
)
def test_the_estimate_follows_the_rate_so_far(
    rate: float, amount: int, seconds: int
) -> None:
    pace = Pace()
    now = work_off(pace, begin=100.0, seconds=300.0, rate=rate)
    assert pace.estimate_seconds(now, amount) == pytest.approx(seconds, abs=1)


def test_time_without_work_does_not_count() -> None:
    pace = Pace()
    now = work_off(pace, begin=0.0, seconds=60.0, rate=10.0, held=1)
    pace.observe(now, 0)
    now = work_off(pace, begin=now + 3600.0, seconds=1.0, rate=10.0)
    assert pace.estimate_seconds(now, 200) == pytest.approx(20, abs=1)


def test_a_change_of_the_rate_is_learnt_within_minutes() -> None:
    pace = Pace()
    now = work_off(pace, begin=0.0, seconds=600.0, rate=10.0)
    now = work_off(pace, begin=now, seconds=180.0, rate=5.0)
    assert pace.estimate_seconds(now, 100) == pytest.approx(20, abs=1)


def test_the_estimate_grows_while_nothing_gets_done() -> None:
    pace = Pace()
    now = work_off(pace, begin=0.0, seconds=60.0, rate=10.0)
    waits = [pace.estimate_seconds(now + stall, 50) for stall in (0, 30, 60, 90, 600)]
    assert waits == sorted(waits)
    assert waits[0] == 5
    assert waits[-1] == 60


def test_the_first_estimate_counts_the_first_work_as_done_now() -> None:
    pace = Pace()
    pace.observe(0.0, 100)
    assert pace.estimate_seconds(0.0, 100) == 1
    assert pace.estimate_seconds(0.1, 100) == 10
    assert pace.estimate_seconds(10.0, 100) == 60
