"""What Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from .durations import Durations
from .loop_stall import LoopStall
from .offenders import Offender

# vLLM's buckets, so that its dashboards can be pointed here.
_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_INTER_TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0),
    *(50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class Metrics:
    """One server's registry; several may live in a process.

    Args:
      read_gauges, read_counters: called at each scrape; name -> value of what others
        count, read from their statistics() and counters().
      loop_stall: watches the server's event loop; read at each scrape, too.
    """

    def __init__(
        self,
        read_gauges: Callable[[], Mapping[str, float]],
        read_counters: Callable[[], Mapping[str, float]],
        loop_stall: LoopStall,
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Reader(read_gauges, read_counters))
        self._registry.register(_StallReader(loop_stall))
        self.requests = self._counter(
            "requests",
            "Requests answered, by endpoint and status",
            "endpoint",
            "status",
        )
        self.cancelled = self._counter(
            "requests_cancelled",
            "Requests whose client left before the end of its answer, by what they "
            "waited for",
            "phase",
        )
        self.finished = self._counter(
            "finished_sequences", "Sequences that ended, by reason", "reason"
        )
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds",
            "From the request's arrival to its first token",
            _FIRST_TOKEN_BUCKETS,
        )
        self.inter_token_latency = self._histogram(
            "inter_token_latency_seconds",
            "Between two tokens of a sequence",
            _INTER_TOKEN_BUCKETS,
        )
        self.request_latency = self._histogram(
            "request_latency_seconds",
            "From a generating request's arrival to its end",
            _LATENCY_BUCKETS,
        )

    def render(self) -> bytes:
        """Return the exposition text, format 0.0.4."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"trioserve_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"trioserve_{name}", text, buckets=buckets, registry=self._registry
        )


def name_fields(prefix: str, statistics: object) -> dict[str, float]:
    """Return a statistics dataclass's numbers by metric name; num_ is left out."""
    return {
        f"{prefix}{field.name.removeprefix('num_')}": value
        for field in fields(statistics)  # type: ignore[arg-type]
        if isinstance(value := getattr(statistics, field.name), (int, float))
    }


class _Reader(Collector):
    def __init__(
        self,
        read_gauges: Callable[[], Mapping[str, float]],
        read_counters: Callable[[], Mapping[str, float]],
    ) -> None:
        self._read_gauges = read_gauges
        self._read_counters = read_counters

    def describe(self) -> list[Metric]:
        # Nothing is read before the first scrape.
        return []

    def collect(self) -> Iterator[Metric]:
        for name, value in self._read_gauges().items():
            yield GaugeMetricFamily(f"trioserve_{name}", "Now", value=value)
        for name, value in self._read_counters().items():
            yield CounterMetricFamily(
                f"trioserve_{name}", "Since the start", value=value
            )


class _StallReader(Collector):
    """Reads histograms that are counted elsewhere: a Histogram would cost each step."""

    def __init__(self, loop_stall: LoopStall) -> None:
        self._loop_stall = loop_stall

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        seen = self._loop_stall.statistics()
        yield _render_durations(
            "event_loop_turn_seconds",
            "How long the event loop was away from its sockets",
            seen.turns,
        )
        yield _render_durations(
            "task_step_seconds",
            "How long a task ran from one wait to the next",
            seen.steps,
        )
        yield from _render_offenders(
            f"Steps over {seen.threshold_seconds:g} s, of the worst tasks by name",
            seen.offenders,
        )


def _render_durations(name: str, text: str, durations: Durations) -> Metric:
    bounds = [*map(str, durations.bounds), "+Inf"]
    return HistogramMetricFamily(
        f"trioserve_{name}",
        text,
        buckets=list(zip(bounds, accumulate(durations.counts))),
        sum_value=durations.total_seconds,
    )


def _render_offenders(text: str, offenders: Iterable[Offender]) -> Iterator[Metric]:
    # The names are those of functions, and few: never a client's words.
    labels = ("task",)
    steps = CounterMetricFamily(
        "trioserve_slow_task_steps", f"{text}: how many", labels=labels
    )
    total = CounterMetricFamily(
        "trioserve_slow_task_seconds", f"{text}: all together", labels=labels
    )
    longest = GaugeMetricFamily(
        "trioserve_slow_task_longest_seconds", f"{text}: the longest", labels=labels
    )
    for offender in offenders:
        steps.add_metric([offender.name], offender.num_steps)
        total.add_metric([offender.name], offender.total_seconds)
        longest.add_metric([offender.name], offender.longest_seconds)
    yield from (steps, total, longest)
