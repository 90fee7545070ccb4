"""The messages between the engine and the processes that share its model.

Each process is a stage of a pipeline, or one shard of a stage.

Prepare -->             the first message, with the configuration
     <-- Prepared | NotLoaded
Load -->                when all are prepared: connect to the others, and load
     <-- StageLoaded | NotLoaded
Allocate -->            when all are loaded
     <-- Ready          when all are warm
Step -->                each plan, to each stage
     <-- Stepped        its result, from the one process that samples
LoadAdapter -->         to each process, which reads its part beside the steps
     <-- AdapterLoaded | AdapterNotLoaded
DropAdapter -->         behind the steps that use it
     <-- Alive          every second, from all processes
"""

from __future__ import annotations

from ...config import EngineConfig
from ...processes import Alive, Message
from ...types.adapter import AdapterFacts, AdapterSource
from ...types.model_info import ModelInfo
from ...types.not_loaded import NotLoaded
from ...types.output import StepResult
from ...types.plan import StepPlan
from ...types.stage_place import StagePlace
from ...types.windows import CacheBlocks


class Prepare(Message, frozen=True, kw_only=True):
    """Find the model and the device.

    Args:
      place: of this process among all that share the model.
      local_rank, num_local_ranks: the number of this process, from 0, and of all processes
        on its machine, which share its cores, its memory and its GPUs.
      listens_on: the address of the first process, to which the others connect.
      log_level: as in logging.
    """

    config: EngineConfig
    place: StagePlace
    local_rank: int
    num_local_ranks: int
    listens_on: str
    log_level: int


class Prepared(Message, frozen=True, kw_only=True):
    """The process has found the model and the device.

    Args:
      version: trioserve's.
      device_type: torch's.
      port: where the first process listens; 0 elsewhere.
    """

    version: str
    device_type: str
    port: int


class Load(Message, frozen=True, kw_only=True):
    """Connect to the other processes, and load a part of the model.

    They are connected first, because shards are compared with kernels together.

    Args:
      port: where the first process listens.
    """

    port: int


class StageLoaded(Message, frozen=True, kw_only=True):
    """The layers of a stage, or its shard of them, are loaded.

    Args:
      info: the whole model's.
      blocks: the KV cache that fits into its memory.
      max_num_seqs: sequences whose states fit into its memory.
    """

    info: ModelInfo
    blocks: CacheBlocks
    max_num_seqs: int


class Allocate(Message, frozen=True, kw_only=True):
    """Allocate the KV cache, and run a first step with the other processes."""

    blocks: CacheBlocks
    max_num_seqs: int
    max_model_len: int


class Ready(Message, frozen=True, kw_only=True):
    """The stage is ready for plans."""


class Step(Message, frozen=True, kw_only=True):
    """Run a plan."""

    plan: StepPlan


class Stepped(Message, frozen=True, kw_only=True):
    """The result of a plan."""

    result: StepResult


class LoadAdapter(Message, frozen=True, kw_only=True):
    """Read an adapter; plans behind the answer may name its number."""

    source: AdapterSource


class AdapterLoaded(Message, frozen=True, kw_only=True):
    """The process runs its part of an adapter."""

    facts: AdapterFacts


class AdapterNotLoaded(Message, frozen=True, kw_only=True):
    """The process has nothing of an adapter.

    Args:
      reason: as in InvalidAdapter.
    """

    number: int
    reason: str


class DropAdapter(Message, frozen=True, kw_only=True):
    """Forget an adapter, if it is there."""

    number: int


ToStage = Prepare | Load | Allocate | Step | LoadAdapter | DropAdapter
FromStage = (
    Prepared
    | StageLoaded
    | NotLoaded
    | Ready
    | Stepped
    | AdapterLoaded
    | AdapterNotLoaded
    | Alive
)
