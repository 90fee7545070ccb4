"""When a core falls asleep and wakes: orders, idleness, work."""

from __future__ import annotations

import math

from trioserve.engine.sleep.rules import IdleRule, SleepRules


def test_an_idle_core_falls_asleep_when_its_time_is_over() -> None:
    rules = SleepRules(IdleRule(seconds=10.0, level=1))
    rules.note_work(100.0)
    rows = [
        # now, is_at_rest, level, next look
        (100.0, True, 0, 110.0),
        (109.9, True, 0, 110.0),
        (110.0, True, 1, 110.0),
        (500.0, False, 0, 501.0),
    ]
    for now, is_at_rest, level, look in rows:
        found = rules.choose_level(now, is_at_rest=is_at_rest)
        assert found == level, f"at {now}"
        assert rules.find_next_look(now, is_at_rest=is_at_rest) == look, f"at {now}"


def test_a_core_without_a_rule_sleeps_by_order_alone() -> None:
    rules = SleepRules(IdleRule())
    assert rules.choose_level(1e9, is_at_rest=True) == 0
    assert rules.find_next_look(1e9, is_at_rest=False) == math.inf
    rules.sleep(1, ends_requests=False)
    assert rules.choose_level(1e9, is_at_rest=False) == 0, "requests end first"
    assert rules.choose_level(1e9, is_at_rest=True) == 1


def test_work_wakes_an_idle_core_and_none_that_an_operator_put_to_sleep() -> None:
    rules = SleepRules(IdleRule(seconds=10.0))
    assert not rules.wants_wake(is_at_rest=True)
    assert rules.wants_wake(is_at_rest=False)
    rules.sleep(1, ends_requests=True)
    assert not rules.wants_wake(is_at_rest=False)
    rules.sleep(2, ends_requests=True)
    rules.sleep(1, ends_requests=False)
    assert rules.order == 2, "a later order gives nothing less back"
    rules.wake()
    assert rules.wants_wake(is_at_rest=True)
    rules.note_awake(200.0)
    rules.fall_asleep()
    assert not rules.wants_wake(is_at_rest=True)
    assert rules.choose_level(209.0, is_at_rest=True) == 0
