"""The metrics that GET /metrics shows: one table for each source.

server      the server and its event loop
requests    requests and keys, which the HTTP side counts itself
models      several models: their states and loads
engine      engines, which generate or pool
rendering   renderers, their workers and images
collect     all tables, and the text for Prometheus

To add a metric, add a row to the table of its source, and the same row to
docs/metrics.rst. A row has the metric's name and meaning with its unit, and reads it
from the source: the statistics() or counters() of a room, or RequestCounts for numbers
that the HTTP side counts itself. A new source needs its own table; METRICS lists the
table, and collect.py reads it.

With several HTTP processes, their numbers are added. `joins` in a row says so if they are
not: the engine's numbers are the same in all of them.

A metric that vLLM also has uses vLLM's name after the prefix, so that vLLM's dashboards
need only another prefix. Metrics of vLLM that this server cannot fill are left out.
"""

from .collect import (
    METRICS,
    collect_families,
    list_samples,
    render_all_metrics,
    render_metrics,
)

__all__ = [
    "METRICS",
    "collect_families",
    "list_samples",
    "render_all_metrics",
    "render_metrics",
]
