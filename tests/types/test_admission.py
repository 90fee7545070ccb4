"""Clients share a bound, and refused ones try again after a time that work has set."""

from __future__ import annotations

from hypothesis import given, strategies as st
import pytest

from trioserve.types.admission import ClientHoldings, Pace


def hold(**numbers: int) -> ClientHoldings:
    held = ClientHoldings()
    for client, number in numbers.items():
        held.change(client, number)
    return held


def test_clients_share_a_bound() -> None:
    for held, limit, client, num_free in (
        # One client may take all.
        ({}, 10, "ann", 10),
        ({"ann": 7}, 10, "ann", 3),
        ({"ann": 12}, 10, "ann", -2),
        # A full bound still has the equal share of another client.
        ({"ann": 10}, 10, "ann", 0),
        ({"ann": 10}, 10, "bob", 5),
        ({"ann": 10}, 10, None, 0),
        ({"ann": 10, "bob": 5}, 10, "bob", 0),
        # A third of it, rounded up.
        ({"ann": 10, "bob": 5}, 10, "carl", 4),
        # The free part belongs to everybody.
        ({"ann": 6, "bob": 1}, 10, "ann", 3),
        ({"ann": 6, "bob": 1}, 10, None, 3),
        # A single place is not one client's alone.
        ({"ann": 1}, 1, "bob", 1),
        ({"ann": 1}, 0, "bob", 0),
    ):
        assert hold(**held).count_free(limit, client) == num_free


def test_a_client_that_holds_nothing_is_forgotten() -> None:
    held = hold(ann=10, bob=1)
    held.change("bob", -1)
    assert held.count("bob") == 0
    assert held.count_free(10, "carl") == 5
    held.change("ann", -10)
    assert held.total == 0
    assert held.count_free(10, "carl") == 10


def test_the_largest_counts_what_it_asks_for() -> None:
    assert hold(ann=4, bob=5).find_largest() == "bob"
    held = hold(ann=4, bob=4)
    assert [held.find_largest(each) for each in ("ann", "bob")] == ["ann", "bob"]
    assert held.find_largest("carl") in ("ann", "bob")
    assert hold().find_largest("carl") == "carl"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-30, 30)), max_size=50))
def test_clients_exceed_a_bound_by_no_more_than_is_said(
    changes: list[tuple[int, int]],
) -> None:
    held, limit = ClientHoldings(), 60
    for client, number in changes:
        name = str(client)
        if number > 0 and number <= held.count_free(limit, name):
            held.change(name, number)
        elif number < 0:
            held.change(name, -min(-number, held.count(name)))
        # Six clients, whose shares are whole numbers.
        assert held.total <= limit * (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5 + 1 / 6)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 30)), max_size=50))
def test_a_client_below_its_equal_share_loses_nothing_to_others(
    additions: list[tuple[int, int]],
) -> None:
    held, limit = ClientHoldings(), 60
    for client, number in additions:
        held.change(str(client), number)
        while held.total > limit:
            largest = held.find_largest()
            num_clients = sum(held.count(str(each)) > 0 for each in range(6))
            assert held.count(largest) > limit / num_clients
            held.change(largest, -1)


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
