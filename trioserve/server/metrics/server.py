"""Metrics of the server, its bodies and responses, and its event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import trio

from ...http.state import ServerState
from ...observe import SLOW_STEP_SECONDS, Distribution, Offender, StallStatistics
from ...observe.exposition import CounterMetric, GaugeMetric, HistogramMetric, Rows
from ...types.version import __version__

_SLOW = f"task steps longer than {1000 * SLOW_STEP_SECONDS:g} ms"


def _read_offenders(
    read: Callable[[Offender], float],
) -> Callable[[StallStatistics], Mapping[tuple[str, ...], float]]:
    # Labels are a few names of functions, and never texts of clients.
    return lambda seen: {(each.name,): read(each) for each in seen.offenders}


def _describe(state: ServerState) -> Mapping[tuple[str, ...], float]:
    infos = [each.info for each in state.engines]
    return {(__version__, info.name, info.kernels): 1 for info in infos}


SERVER: Rows[ServerState] = (
    GaugeMetric(
        "trioserve_info",
        "Always 1; the labels describe the server.",
        lambda state: _describe(state),
        ("version", "model", "kernels"),
        joins="own",
    ),
    GaugeMetric(
        "trioserve_http_requests_active",
        "HTTP requests that are being answered.",
        lambda state: state.lifecycle.num_active,
    ),
    GaugeMetric(
        "trioserve_tasks",
        "Tasks of the event loop; some belong to connections that wait for a request.",
        lambda state: trio.lowlevel.current_statistics().tasks_living,
    ),
    GaugeMetric(
        "trioserve_http_bodies_bytes",
        "Bytes of request bodies in memory.",
        lambda state: state.bodies.num_bytes,
    ),
    CounterMetric(
        "trioserve_http_bodies_refused_total",
        "Request bodies refused because all bodies together took too much memory.",
        lambda state: state.bodies.num_refused,
    ),
    CounterMetric(
        "trioserve_request_log_lines_dropped_total",
        "Lines of the request log that were not written, because the disk was slow or full.",
        lambda state: 0 if state.request_log is None else state.request_log.num_dropped,
    ),
    GaugeMetric(
        "trioserve_unread_bytes",
        "Bytes of tokens that clients have not taken yet, approximately.",
        lambda state: state.unread.num_bytes,
    ),
    CounterMetric(
        "trioserve_unread_streams_ended_total",
        "Streams that were ended because their clients left too many tokens unread.",
        lambda state: state.unread.num_ended,
    ),
    CounterMetric(
        "trioserve_traces_dropped_total",
        "Requests whose traces were not sent, because the collector was slow or dead.",
        lambda state: 0 if state.traces is None else state.traces.num_dropped,
    ),
    GaugeMetric(
        "trioserve_streams_resumable",
        "Streams that clients can take up again, including ended ones.",
        lambda state: state.resumable.num_streams,
    ),
    CounterMetric(
        "trioserve_streams_resumed_total",
        "Times that a client took a stream up again.",
        lambda state: state.resumable.num_resumed,
    ),
    GaugeMetric(
        "trioserve_responses_stored",
        "Stored responses of /v1/responses, including running ones.",
        lambda state: state.responses.statistics().num_responses,
    ),
    GaugeMetric(
        "trioserve_responses_stored_bytes",
        "Bytes of stored responses.",
        lambda state: state.responses.statistics().num_bytes,
    ),
    CounterMetric(
        "trioserve_responses_dropped_total",
        "Stored responses that were dropped: for their age, or for the memory of newer "
        "ones.",
        lambda state: {(k,): n for k, n in state.responses.dropped.items()},
        ("reason",),
    ),
    GaugeMetric(
        "trioserve_responses_background",
        "Responses that are being generated in the background.",
        lambda state: state.background.num_running,
    ),
    CounterMetric(
        "trioserve_responses_background_refused_total",
        "Responses refused because too many ran in the background.",
        lambda state: state.background.num_refused,
    ),
    CounterMetric(
        "trioserve_leak_audits_total",
        "Looks for things that outlive their requests.",
        lambda state: state.audit.num_audits,
    ),
    CounterMetric(
        "trioserve_leaks_total",
        "Things that outlived their requests, by kind.",
        lambda state: state.audit.num_leaks,
        ("kind",),
    ),
    GaugeMetric(
        "trioserve_engine_stalled_seconds",
        "Seconds since the last sign of progress of the running step; about 1 at most "
        "without a step.",
        lambda state: state.stalled_seconds,
        joins="own",
    ),
)

LOOP: Rows[StallStatistics] = (
    HistogramMetric(
        "trioserve_event_loop_turn_seconds",
        "Seconds between two checks of the sockets by the event loop.",
        lambda seen: Distribution.of_durations(seen.turns),
    ),
    HistogramMetric(
        "trioserve_task_step_seconds",
        "Seconds for which a task ran before other tasks could run.",
        lambda seen: Distribution.of_durations(seen.steps),
    ),
    CounterMetric(
        "trioserve_slow_task_steps_total",
        f"Number of {_SLOW}, for the tasks with the longest ones.",
        _read_offenders(lambda each: each.num_steps),
        ("task",),
    ),
    CounterMetric(
        "trioserve_slow_task_seconds_total",
        f"Seconds of all {_SLOW}, for the tasks with the longest ones.",
        _read_offenders(lambda each: each.total_seconds),
        ("task",),
    ),
    GaugeMetric(
        "trioserve_slow_task_longest_seconds",
        f"Seconds of the longest of the {_SLOW}, for the tasks with the longest ones.",
        _read_offenders(lambda each: each.longest_seconds),
        ("task",),
        joins="max",
    ),
)
