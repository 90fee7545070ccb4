"""What a server and its engine process tell each other.

Begin -->                    the configuration, first of all
     <-- Loaded | NotLoaded  after seconds or minutes
Add, Abort, ... -->          as they come, answered by nothing
     <-- Report              of each step, and each second
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ...config import EngineConfig
from ...scheduler import (
    PoolingCounters,
    PoolingStatistics,
    SchedulerCounters,
    SchedulerStatistics,
)
from ...types.ids import SequenceId
from ...types.model_info import ModelInfo
from ...types.not_loaded import NotLoaded
from ...types.output import TokenDelta
from ...types.pooling import PoolingInfo, QueryKey
from ...types.tensors import TensorBytes
from ..generation.core import SequenceGroup
from ..pooling.core import FlowId, JobId, PoolingBatch


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Load a model.

    Args:
      accepts: as cores.ModelKind.
      log_level: as in logging.
    """

    config: EngineConfig
    model_kind: Literal["generate", "pooling", "all"]
    log_level: int


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model is there; `pooling` where it pools."""

    info: ModelInfo
    pooling: PoolingInfo | None


class Add(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    group: SequenceGroup


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    sequence_ids: tuple[SequenceId, ...]


class AddInputs(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    batch: PoolingBatch


class AbortInputs(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    jobs: tuple[JobId, ...]


class CloseFlow(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    flow: FlowId
    kept: tuple[QueryKey, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a step gave, and how the engine is; see Core."""

    outputs: tuple[TokenDelta, ...] = ()
    statistics: SchedulerStatistics
    counters: SchedulerCounters
    stalled_seconds: float


class PoolingReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The same of an engine that pools."""

    outputs: tuple[tuple[JobId, TensorBytes], ...] = ()
    statistics: PoolingStatistics
    counters: PoolingCounters
    stalled_seconds: float


ToEngine = Begin | Add | Abort | AddInputs | AbortInputs | CloseFlow
FromEngine = Loaded | NotLoaded | Report | PoolingReport
