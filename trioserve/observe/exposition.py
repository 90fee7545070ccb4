"""Rows of a table of metrics, and their text for Prometheus."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Generic, Literal, TypeVar

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

# Joins the numbers of several processes; "own" if each process has the number of all.
Joining = Literal["sum", "max", "own"]

# The samples of a metric: the name, the labels and the value of each.
Samples = list[tuple[str, dict[str, str], float]]


@dataclass(frozen=True, slots=True)
class Metric(ABC, Generic[SourceT, ReadingT]):
    """One metric: a row of a table.

    Args:
      name: as Prometheus shows it, with its prefix; a counter's ends in _total.
      help: the thing that is counted or measured, and its unit.
      read: takes the present value out of a source, such as a room's statistics.
      labels: their names.
      joins: how the numbers of several processes become one.
    """

    kind: ClassVar[str]

    name: str
    help: str
    read: Callable[[SourceT], ReadingT]
    labels: tuple[str, ...] = ()
    joins: Joining = "sum"

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


def label_families(
    label: str, families: Mapping[str, Iterable[Family]]
) -> Iterator[Family]:
    """Join the families of several sources, whose samples get a label.

    Args:
      families: by the value of the label.
    """
    joined: dict[str, Family] = {}
    for value, each in families.items():
        for family in each:
            labelled = joined.setdefault(
                family.name, Family(family.name, family.documentation, family.type)
            )
            for sample in family.samples:
                labels = {label: value, **sample.labels}
                labelled.add_sample(sample.name, labels, sample.value)
    yield from joined.values()


def read_samples(families: Iterable[Family]) -> dict[str, Samples]:
    """Return the samples of families by their names, for another process."""
    return {
        family.name: [(each.name, each.labels, each.value) for each in family.samples]
        for family in families
    }


def join_families(
    families: Iterable[Family],
    others: Collection[Mapping[str, Samples]],
    joinings: Mapping[str, Joining],
) -> Iterator[Family]:
    """Yield the families of this process, joined with the families of other processes.

    Args:
      others: read_samples of each process.
      joinings: how each family is joined, by name.
    """
    for family in families:
        joining = joinings[family.name]
        if joining != "own":
            join = max if joining == "max" else _add
            _join(family, join, [each.get(family.name, []) for each in others])
        yield family


def _join(
    family: Family, join: Callable[[float, float], float], others: Iterable[Samples]
) -> None:
    # By name and labels. A histogram's buckets keep their order.
    joined: dict[object, tuple[str, dict[str, str], float]] = {}
    own: Samples = [(each.name, each.labels, each.value) for each in family.samples]
    for samples in (own, *others):
        for name, labels, number in samples:
            place = (name, *labels.items())
            if place in joined:
                number = join(joined[place][2], number)
            joined[place] = name, labels, number
    family.samples = []
    for sample in joined.values():
        family.add_sample(*sample)


def _add(one: float, other: float) -> float:
    return one + other


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
