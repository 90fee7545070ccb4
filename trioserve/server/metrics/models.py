"""Metrics of several models; a server with one model has none of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, get_args

from ...frontend.models.policy import ModelState
from ...frontend.models.router import ModelRouter, ModelStatus
from ...observe.exposition import CounterMetric, GaugeMetric, Rows

_STATES: Final[tuple[str, ...]] = (*get_args(ModelState), "sleeping")

_Numbers = Mapping[tuple[str, ...], float]


def _read_states(models: ModelRouter) -> _Numbers:
    return {
        (each.entry.name, state): float(each.state == state)
        for each in models.describe()
        for state in _STATES
    }


def _read(number: Callable[[ModelStatus], float]) -> Callable[[ModelRouter], _Numbers]:
    return lambda models: {
        (each.entry.name,): number(each) for each in models.describe()
    }


_LABEL: Final = ("model_name",)

MODELS: Rows[ModelRouter] = (
    GaugeMetric(
        "trioserve_model_state",
        "1 for the state of a model, and 0 for all other states.",
        _read_states,
        ("model_name", "state"),
    ),
    GaugeMetric(
        "trioserve_model_bytes",
        "Bytes that a model holds when it is loaded; before its first load an estimate.",
        _read(lambda each: each.view.num_bytes),
        _LABEL,
    ),
    GaugeMetric(
        "trioserve_model_requests",
        "Requests that use a model.",
        _read(lambda each: each.view.num_users),
        _LABEL,
    ),
    GaugeMetric(
        "trioserve_model_requests_waiting",
        "Requests that wait until a model is loaded.",
        _read(lambda each: each.view.num_waiting),
        _LABEL,
    ),
    CounterMetric(
        "trioserve_model_loads_total",
        "Loads of a model that ended well.",
        _read(lambda each: each.counts.num_loads),
        _LABEL,
    ),
    CounterMetric(
        "trioserve_model_load_seconds_total",
        "Seconds of those loads.",
        _read(lambda each: each.counts.seconds),
        _LABEL,
    ),
    CounterMetric(
        "trioserve_model_failures_total",
        "Loads of a model that failed, and failures of its engine.",
        _read(lambda each: each.counts.num_failures),
        _LABEL,
    ),
)
