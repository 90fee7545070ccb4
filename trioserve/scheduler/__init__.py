"""The planning of steps: continuous batching over paged KV blocks.

Sans-I/O: no trio, no torch, no clock, no logging. Every decision is a value, so tests run
through a thousand steps in a millisecond. The scheduler knows sequences, blocks, budgets
and the names of clients, who share them. It does not know requests, text or the time.

The doors are Scheduler, and PoolingScheduler for models that read each input in one step.
Both have the methods add, abort, schedule, update and statistics.
"""

from .flow_queue import PoolingFlow, PoolingJob
from .generation.blocks import BlockPool
from .generation.counts import (
    HeldSequence,
    SchedulerCounters,
    SchedulerHoldings,
    SchedulerStatistics,
)
from .generation.scheduler import Scheduler
from .generation.sequence import LEVEL_SECONDS, Flow, Sequence
from .generation.shared_queue import HELD_WORK
from .pooling import (
    PoolingCounters,
    PoolingScheduler,
    PoolingStatistics,
)
from .step_cost import StepCost, StepRates, StepSize

__all__ = [
    "HELD_WORK",
    "LEVEL_SECONDS",
    "BlockPool",
    "Flow",
    "HeldSequence",
    "PoolingCounters",
    "PoolingFlow",
    "PoolingJob",
    "PoolingScheduler",
    "PoolingStatistics",
    "Scheduler",
    "SchedulerCounters",
    "SchedulerHoldings",
    "SchedulerStatistics",
    "Sequence",
    "StepCost",
    "StepRates",
    "StepSize",
]
