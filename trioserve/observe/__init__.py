"""Measures: the event loop's stalls and everything that /metrics exports.

It knows trio and prometheus-client; it does not know what it measures but through the
statistics() and counters() that every stateful object has.
"""

from .loop import LoopMonitor
from .metrics import Metrics

__all__ = ["LoopMonitor", "Metrics"]
