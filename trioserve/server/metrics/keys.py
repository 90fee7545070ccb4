"""Metrics of keys; the label is a name of the file with keys, and never a key."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...http.keys.key_use import KeyUse, KeyUses
from ...observe import CounterMetric, GaugeMetric, Rows


def _read(
    read: Callable[[KeyUse], float],
) -> Callable[[KeyUses], Mapping[tuple[str, ...], float]]:
    return lambda uses: {(each.key.name,): read(each) for each in uses.list_all()}


KEYS: Rows[KeyUses] = (
    GaugeMetric(
        "trioserve_key_requests_running",
        "Requests with a body that are being answered, by key.",
        _read(lambda use: use.num_running),
        ("key",),
    ),
    CounterMetric(
        "trioserve_key_requests_total",
        "Requests with a body that were taken, by key.",
        _read(lambda use: use.num_requests),
        ("key",),
    ),
    CounterMetric(
        "trioserve_key_tokens_total",
        "Tokens of prompts and answers, and of texts that were pooled, by key.",
        _read(lambda use: use.num_tokens),
        ("key",),
    ),
    CounterMetric(
        "trioserve_key_requests_refused_total",
        "Requests refused because of a limit of their key, by key and limit.",
        lambda uses: {
            (each.key.name, limit): count
            for each in uses.list_all()
            for limit, count in each.refused.items()
        },
        ("key", "limit"),
    ),
)
