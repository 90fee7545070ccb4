"""The messages between the engine and the stages of a pipeline.

LoadStage -->           the first message, with the configuration
     <-- StageLoaded | NotLoaded
Allocate -->            when all stages are loaded
     <-- Ready          when all stages are connected and warm
Step -->                each plan, to each stage
     <-- Stepped        its result, from the last stage alone
     <-- Beat           every second, from all stages
"""

from __future__ import annotations

import msgspec

from ..config import EngineConfig
from ..types.model_info import ModelInfo
from ..types.not_loaded import NotLoaded
from ..types.output import StepResult
from ..types.plan import StepPlan


class LoadStage(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Load a stage.

    Args:
      stage, num_stages: number of this stage, from 0, and of all stages.
      local_stage, num_local_stages: the same among the stages on its machine, which share
        its cores, its memory and its GPUs.
      listens_on: the address of the first stage, to which the other stages connect.
      log_level: as in logging.
    """

    config: EngineConfig
    stage: int
    num_stages: int
    local_stage: int
    num_local_stages: int
    listens_on: str
    log_level: int


class StageLoaded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The layers of a stage are loaded.

    Args:
      version: trioserve's.
      info: the whole model's.
      device_type: torch's.
      num_blocks: KV blocks that fit into its memory.
      port: where the first stage listens; 0 elsewhere.
    """

    version: str
    info: ModelInfo
    device_type: str
    num_blocks: int
    port: int


class Allocate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Allocate the KV cache, connect to the other stages and run a first step with them.

    Args:
      port: where the first stage listens.
    """

    num_blocks: int
    max_model_len: int
    port: int


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The stage is ready for plans."""


class Step(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Run a plan."""

    plan: StepPlan


class Stepped(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The result of a plan."""

    result: StepResult


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The process is alive."""


ToStage = LoadStage | Allocate | Step
FromStage = StageLoaded | NotLoaded | Ready | Stepped | Beat
