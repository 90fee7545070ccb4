"""Decides what the next step computes: continuous batching over paged KV blocks.

Sans-I/O: no trio, no torch, no clock, no logging. Every decision is a value, so a
thousand steps can be tested in a millisecond. The scheduler knows sequences, blocks and
budgets; it does not know requests, clients, text, or when a step runs.

The door is Scheduler: add, abort, schedule, update, statistics.
"""

from .blocks import BlockPool
from .scheduler import Scheduler, SchedulerCounters, SchedulerStatistics
from .sequence import Sequence

__all__ = [
    "BlockPool",
    "Scheduler",
    "SchedulerCounters",
    "SchedulerStatistics",
    "Sequence",
]
