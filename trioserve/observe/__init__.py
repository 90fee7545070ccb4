"""Measures: the event loop's stalls and everything that /metrics exports.

It knows trio and prometheus-client; it does not know what it measures but through the
statistics() and counters() that every stateful object has.
"""

from .durations import Durations
from .loop_stall import LoopStall, StallStatistics
from .metrics import Metrics
from .offenders import Offender
from .pace import Pace

__all__ = ["Durations", "LoopStall", "Metrics", "Offender", "Pace", "StallStatistics"]
