"""A server's /metrics, and the changes of its counts between two readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import math

from trioserve.programs.http.client import FAILURES, Connection

# Upper bound in seconds -> number of durations up to it.
Histogram = dict[float, int]

LOOP_TURNS = "trioserve_event_loop_turn_seconds"
TASK_STEPS = "trioserve_task_step_seconds"
SLOW_STEPS = "trioserve_slow_task_steps_total"
STREAMS = "trioserve_num_requests_open"
STEPS = "trioserve_steps_total"
TOKENS = "trioserve_generation_tokens_total"


class Metrics:
    """The samples of one answer from /metrics."""

    def __init__(self, text: str) -> None:
        """Parse the exposition text."""
        from prometheus_client.parser import text_string_to_metric_families

        self._samples = [
            sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def read_count(self, name: str) -> int:
        """Read a number without labels.

        Raises:
          KeyError: the server has no metric of this name.
        """
        for sample in self._samples:
            if sample.name == name:
                return int(sample.value)
        raise KeyError(name)

    def read_histogram(self, name: str) -> Histogram:
        """Read a histogram; empty if the server has none of this name."""
        return {
            float(sample.labels["le"]): int(sample.value)
            for sample in self._samples
            if sample.name == f"{name}_bucket"
        }

    def read_by_label(self, name: str, label: str) -> dict[str, int]:
        """Read a number for each value of a label."""
        return {
            sample.labels[label]: int(sample.value)
            for sample in self._samples
            if sample.name == name
        }


async def fetch_metrics(url: str) -> Metrics:
    """Fetch /metrics on a connection of its own."""
    async with Connection(url) as connection:
        return Metrics((await connection.fetch("GET", "/metrics")).decode())


async def try_metrics(url: str) -> Metrics | None:
    """Fetch /metrics; None if the server has none."""
    try:
        return await fetch_metrics(url)
    except FAILURES:
        return None


def find_gains(before: Histogram, after: Histogram) -> Histogram:
    """Subtract an earlier histogram; the bounds of the result rise."""
    return {bound: after[bound] - before.get(bound, 0) for bound in sorted(after)}


def find_quantile(gains: Histogram, share: float) -> float:
    """Estimate a quantile of a histogram.

    Source: Prometheus' histogram_quantile. It is linear within a bucket, and the last
    finite bound stands for everything above it.
    """
    rank = share * gains[math.inf]
    low, num_below = 0.0, 0
    for bound, gain in gains.items():
        if gain >= rank and gain > num_below:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (rank - num_below) / (gain - num_below)
        low, num_below = bound, gain
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket of a histogram of durations; bounds in seconds.

    Attributes:
      up_to: None for the last bucket, which has no upper bound.
    """

    above: float
    up_to: float | None

    def write(self) -> str:
        """Write it in milliseconds."""
        if self.up_to is None:
            return f"> {1000 * self.above:g}"
        return f"{1000 * self.above:g}-{1000 * self.up_to:g}"


def find_longest(gains: Histogram) -> Bucket:
    """Find the highest bucket that is not empty."""
    above = 0.0
    for bound, gain in gains.items():
        if gain >= gains[math.inf]:
            return Bucket(above=above, up_to=None if math.isinf(bound) else bound)
        above = bound
    raise AssertionError("the last bound is infinite")


def find_new(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Subtract earlier counts, and keep the counts that grew."""
    gains = {name: count - before.get(name, 0) for name, count in after.items()}
    return {name: gain for name, gain in gains.items() if gain > 0}
