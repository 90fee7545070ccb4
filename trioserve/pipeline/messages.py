"""What a pipeline's executor and its stages tell each other.

Begin -->               the configuration, first of all
     <-- Loaded | NotLoaded
Allocate -->            once all are loaded
     <-- Ready          once all are connected, and warm
Step -->                each plan to each stage
     <-- Stepped        what it gave, from the last stage alone
     <-- Beat           every second, from all
"""

from __future__ import annotations

import msgspec

from ..config import EngineConfig
from ..types.model_info import ModelInfo
from ..types.not_loaded import NotLoaded
from ..types.output import StepResult
from ..types.plan import StepPlan


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Load a stage.

    Args:
      stage, num_stages: which of how many; from 0.
      local_stage, num_local_stages: the same among those on its machine, which share its
        cores, its memory and its GPUs.
      listens_on: at the first stage, the address at which the others will meet it.
      log_level: as in logging.
    """

    config: EngineConfig
    stage: int
    num_stages: int
    local_stage: int
    num_local_stages: int
    listens_on: str
    log_level: int


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A stage's layers are there.

    Args:
      version: trioserve's.
      info: the whole model's.
      device_type: torch's.
      num_blocks: KV blocks that its memory holds.
      port: where the first stage listens; 0 elsewhere.
    """

    version: str
    info: ModelInfo
    device_type: str
    num_blocks: int
    port: int


class Allocate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Make the KV cache, meet the other stages and run a first step together.

    Args:
      port: where the first stage listens.
    """

    num_blocks: int
    max_model_len: int
    port: int


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Plans may come."""


class Step(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    plan: StepPlan


class Stepped(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    result: StepResult


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The process is there."""


ToStage = Begin | Allocate | Step
FromStage = Loaded | NotLoaded | Ready | Stepped | Beat
