"""Metrics of requests, which the HTTP side counts itself, and of the keys of clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...http.keys.key_use import KeyUse, KeyUses
from ...http.record.request_counts import RequestCounts
from ...observe.exposition import CounterMetric, GaugeMetric, HistogramMetric, Rows

REQUESTS: Rows[RequestCounts] = (
    CounterMetric(
        "trioserve_http_requests_total",
        "HTTP requests answered, by path and status.",
        lambda counts: counts.answered,
        ("handler", "status"),
    ),
    CounterMetric(
        "trioserve_requests_cancelled_total",
        "Requests whose client closed the connection before the end of the answer, by "
        "phase.",
        lambda counts: counts.cancelled,
        ("phase",),
    ),
    HistogramMetric(
        "trioserve_cancel_to_free_seconds",
        "Seconds from the cancellation of a request (its client left, DELETE, its "
        "deadline) until nothing of it was left, by phase.",
        lambda counts: {
            (phase,): each.statistics() for phase, each in counts.cancel_to_free.items()
        },
        ("phase",),
    ),
    HistogramMetric(
        "trioserve_e2e_request_latency_seconds",
        "Seconds from the arrival of a request to the end of its answer.",
        lambda counts: counts.latency.statistics(),
    ),
)

GENERATION_REQUESTS: Rows[RequestCounts] = (
    CounterMetric(
        "trioserve_request_success_total",
        "Finished sequences, by the reason of their end: stop, length, repetition or "
        "deadline.",
        lambda counts: counts.finished,
        ("finished_reason",),
    ),
    HistogramMetric(
        "trioserve_time_to_first_token_seconds",
        "Seconds from the arrival of a request to the first token of each sequence.",
        lambda counts: counts.time_to_first_token.statistics(),
    ),
    HistogramMetric(
        "trioserve_inter_token_latency_seconds",
        "Seconds between two chunks of each sequence, divided by the tokens of the "
        "second one.",
        lambda counts: counts.inter_token_latency.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_time_per_output_token_seconds",
        "Mean seconds from one token of each sequence to the next, without the first "
        "token.",
        lambda counts: counts.time_per_output_token.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_queue_time_seconds",
        "Seconds for which a request waited in the engine's queue.",
        lambda counts: counts.queue_time.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_prefill_time_seconds",
        "Seconds from a request's first step to its first token.",
        lambda counts: counts.prefill_time.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_decode_time_seconds",
        "Seconds from a request's first token to its last one.",
        lambda counts: counts.decode_time.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_inference_time_seconds",
        "Seconds from a request's first step to its last token.",
        lambda counts: counts.inference_time.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_prompt_tokens",
        "Prompt tokens of a request, in all its prompts together.",
        lambda counts: counts.prompt_tokens.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_generation_tokens",
        "Generated tokens of a request, in all its sequences together.",
        lambda counts: counts.generation_tokens.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_params_n",
        "Number of sequences for each prompt of a request.",
        lambda counts: counts.params_n.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_params_max_tokens",
        "Limit on the tokens of a sequence, for requests that set a limit.",
        lambda counts: counts.params_max_tokens.statistics(),
    ),
)


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
