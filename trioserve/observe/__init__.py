"""Measurements: stalls of the event loop, histograms, and the text of /metrics.

The text has a door of its own, exposition.py: few processes need prometheus-client.

Owner names the request that a task, a thread or a token belongs to, and Leak is one of these
that outlives it.

It uses trio and prometheus-client. It does not contain the names of metrics: they are
in the tables of server/metrics/.
"""

from .durations import Durations
from .histogram import Distribution, Histogram
from .leak import LEAK_KINDS, EngineAudit, Leak, LeakKind
from .loop_stall import SLOW_STEP_SECONDS, LoopStall, StallStatistics
from .offenders import Offender
from .owner import Owned, Owner, find_owner, find_owner_of, name_owner

__all__ = [
    "Distribution",
    "EngineAudit",
    "Durations",
    "Histogram",
    "LEAK_KINDS",
    "Leak",
    "LeakKind",
    "LoopStall",
    "Offender",
    "Owned",
    "Owner",
    "SLOW_STEP_SECONDS",
    "StallStatistics",
    "find_owner",
    "find_owner_of",
    "name_owner",
]
