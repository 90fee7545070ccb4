"""Decides what the next step computes: continuous batching over paged KV blocks.

Sans-I/O: no trio, no torch, no clock, no logging. Every decision is a value, so a
thousand steps can be tested in a millisecond. The scheduler knows sequences, blocks and
budgets; it does not know requests, clients, text, or when a step runs.

The door is Scheduler: add, abort, schedule, update, statistics; and PoolingScheduler, which
has the same methods, for models that read each input in one step.
"""

from .generation.blocks import BlockPool
from .generation.counts import SchedulerCounters, SchedulerStatistics
from .generation.scheduler import Scheduler
from .generation.sequence import LEVEL_SECONDS, Flow, Sequence
from .pooling import (
    PoolingCounters,
    PoolingFlow,
    PoolingJob,
    PoolingScheduler,
    PoolingStatistics,
)
from .step_cost import StepCost, StepSize

__all__ = [
    "LEVEL_SECONDS",
    "BlockPool",
    "Flow",
    "PoolingCounters",
    "PoolingFlow",
    "PoolingJob",
    "PoolingScheduler",
    "PoolingStatistics",
    "Scheduler",
    "SchedulerCounters",
    "SchedulerStatistics",
    "Sequence",
    "StepCost",
    "StepSize",
]
