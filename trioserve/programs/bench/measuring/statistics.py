"""Percentiles of durations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Percentiles of durations, in seconds, and the number of durations."""

    median: float
    p90: float
    p95: float
    p99: float
    maximum: float
    count: int


def spread(samples: Iterable[float]) -> Spread | None:
    """Summarise durations; None when there are none."""
    values = sorted(samples)
    if not values:
        return None
    return Spread(
        median=percentile(values, 50),
        p90=percentile(values, 90),
        p95=percentile(values, 95),
        p99=percentile(values, 99),
        maximum=values[-1],
        count=len(values),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Compute a percentile of sorted values, with linear interpolation between two.

    Source: Hyndman and Fan 1996, definition 7, which is also numpy's default.
    """
    position = (len(values) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (position - low)
