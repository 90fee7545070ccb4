"""Percentiles of durations, and medians of several rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
import statistics
from typing import Any, TypeVar, cast


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


def take_median_spread(spreads: Iterable[Spread | None]) -> Spread | None:
    """Take the median of each percentile over rounds; counts add up.

    None when no round has a spread.
    """
    seen = [each for each in spreads if each is not None]
    if not seen:
        return None
    percentiles = {
        each.name: statistics.median(getattr(one, each.name) for one in seen)
        for each in fields(Spread)
        if each.name != "count"
    }
    return Spread(**percentiles, count=sum(each.count for each in seen))


FiguresT = TypeVar("FiguresT")


def find_medians(rounds: Sequence[FiguresT], **others: object) -> FiguresT:
    """Make figures whose fields are the medians of several rounds' fields.

    Args:
      rounds: dataclasses of one kind, whose fields are numbers or spreads.
      others: values of the fields that have no median.
    """
    found: dict[str, Any] = {}
    for each in fields(cast(Any, rounds[0])):
        values = [getattr(figures, each.name) for figures in rounds]
        if each.name in others:
            found[each.name] = others[each.name]
        elif all(value is None or isinstance(value, Spread) for value in values):
            found[each.name] = take_median_spread(values)
        else:
            found[each.name] = statistics.median(values)
    return cast(FiguresT, replace(cast(Any, rounds[0]), **found))
