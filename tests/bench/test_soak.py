"""bench/soak.py tells growth from noise and from caches that fill at the beginning."""

from __future__ import annotations

from typing import Any

import pytest
from soak import Course, Sample


def make_sample(number: int, **figures: Any) -> Sample:
    fields = {"memory_mb": 100.0, "descriptors": 20, "threads": 9, "tasks": 24}
    return Sample(at=number, num_requests=1000 * number, **(fields | figures))


def make_course(memory: list[float]) -> Course:
    samples = [make_sample(i, memory_mb=each) for i, each in enumerate(memory)]
    return Course(before=make_sample(0), samples=samples, after=make_sample(99))


@pytest.mark.parametrize(
    ("memory", "megabytes"),
    [
        ([100.0] * 8, 0),
        # A cache fills in the first quarter.
        ([50.0, 80.0, *[100.0] * 6], 0),
        # A megabyte for each thousand requests.
        ([100.0 + i for i in range(8)], 4),
    ],
)
def test_growth_is_that_behind_the_first_quarter(
    memory: list[float], megabytes: float
) -> None:
    grown, for_each = make_course(memory).find_growth()
    assert grown == pytest.approx(megabytes)
    assert for_each == pytest.approx(1000 if megabytes else 0)
