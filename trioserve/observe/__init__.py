"""Measurements: stalls of the event loop, histograms, and the text of /metrics.

Owner names the request that a task, a thread or a token belongs to, and Leak is one of these
that outlives it.

It uses trio and prometheus-client. It does not contain the names of metrics: they are
in the tables of server/metrics/.
"""

from .durations import Durations
from .exposition import (
    CounterMetric,
    GaugeMetric,
    HistogramMetric,
    Joining,
    Metric,
    Rows,
    Samples,
    collect_rows,
    join_families,
    label_families,
    read_samples,
    render_families,
)
from .histogram import Distribution, Histogram
from .leak import LEAK_KINDS, EngineAudit, Leak, LeakKind
from .loop_stall import SLOW_STEP_SECONDS, LoopStall, StallStatistics
from .offenders import Offender
from .owner import Owned, Owner, find_owner, find_owner_of, name_owner

__all__ = [
    "CounterMetric",
    "Distribution",
    "EngineAudit",
    "Durations",
    "GaugeMetric",
    "Histogram",
    "HistogramMetric",
    "Joining",
    "LEAK_KINDS",
    "Leak",
    "LeakKind",
    "LoopStall",
    "Metric",
    "Offender",
    "Owned",
    "Owner",
    "Rows",
    "SLOW_STEP_SECONDS",
    "StallStatistics",
    "Samples",
    "collect_rows",
    "find_owner",
    "find_owner_of",
    "name_owner",
    "join_families",
    "label_families",
    "read_samples",
    "render_families",
]
