"""What Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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
# Below a millisecond nobody notices a turn of the loop, above a second everybody does.
_TURN_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


class Metrics:
    """One server's registry; several may live in a process.

    Args:
      read_gauges, read_counters: called at each scrape; name -> value of what others
        count, read from their statistics() and counters().
    """

    def __init__(
        self,
        read_gauges: Callable[[], Mapping[str, float]],
        read_counters: Callable[[], Mapping[str, float]],
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Reader(read_gauges, read_counters))
        self.requests = self._counter(
            "requests",
            "Requests answered, by endpoint and status",
            "endpoint",
            "status",
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
        self.loop_turn = self._histogram(
            "event_loop_turn_seconds",
            "How long the event loop was away from its sockets",
            _TURN_BUCKETS,
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
