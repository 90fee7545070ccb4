"""Rows of a table of metrics, and their text for Prometheus."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Generic, TypeVar

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric as Family,
)
from prometheus_client.registry import Collector

from .histogram import Distribution

SourceT = TypeVar("SourceT")
ReadingT = TypeVar("ReadingT")

# A number, or for a metric with labels the number for each tuple of their values.
Numbers = float | Mapping[tuple[str, ...], float]
Distributions = Distribution | Mapping[tuple[str, ...], Distribution]


@dataclass(frozen=True, slots=True)
class Metric(ABC, Generic[SourceT, ReadingT]):
    """One metric: a row of a table.

    Args:
      name: as Prometheus shows it, with its prefix; a counter's ends in _total.
      help: the thing that is counted or measured, and its unit.
      read: takes the present value out of a source, such as a room's statistics.
      labels: their names.
    """

    kind: ClassVar[str]

    name: str
    help: str
    read: Callable[[SourceT], ReadingT]
    labels: tuple[str, ...] = ()

    @abstractmethod
    def collect(self, source: SourceT) -> Family:
        """Read the present value in prometheus_client's form."""


class GaugeMetric(Metric[SourceT, Numbers]):
    """A number that rises and falls."""

    __slots__ = ()
    kind = "gauge"

    def collect(self, source: SourceT) -> Family:
        family = GaugeMetricFamily(self.name, self.help, labels=self.labels)
        for values, number in _list_samples(self.read(source)):
            family.add_metric(values, number)
        return family


class CounterMetric(Metric[SourceT, Numbers]):
    """A number that only rises, from 0 at the engine's or the server's start."""

    __slots__ = ()
    kind = "counter"

    def collect(self, source: SourceT) -> Family:
        family = CounterMetricFamily(self.name, self.help, labels=self.labels)
        for values, number in _list_samples(self.read(source)):
            # No time of creation is given, so there is no series NAME_created.
            family.add_metric(values, number)
        return family


class HistogramMetric(Metric[SourceT, Distributions]):
    """Values counted by bucket."""

    __slots__ = ()
    kind = "histogram"

    def collect(self, source: SourceT) -> Family:
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        read = self.read(source)
        seen = read if isinstance(read, Mapping) else {(): read}
        for values, each in seen.items():
            bounds = [*map(str, each.bounds), "+Inf"]
            family.add_metric(
                values,
                buckets=list(zip(bounds, accumulate(each.counts))),
                sum_value=each.total,
            )
        return family


# Rows that are read from the same kind of source.
Rows = tuple[Metric[SourceT, Numbers] | Metric[SourceT, Distributions], ...]


def collect_rows(rows: Rows[SourceT], source: SourceT) -> Iterator[Family]:
    """Read all rows from one source."""
    return (row.collect(source) for row in rows)


def render_families(families: Iterable[Family]) -> bytes:
    """Return the text that Prometheus reads."""
    return generate_latest(_Collected(families))


class _Collected(Collector):
    """Stands in for a registry, so that a process may have several servers."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def _list_samples(numbers: Numbers) -> Iterable[tuple[tuple[str, ...], float]]:
    return numbers.items() if isinstance(numbers, Mapping) else [((), numbers)]
