"""The messages between a server and its engine process.

StartEngine -->                        the configuration; the first message
            <-- EngineLoaded           after seconds or minutes; or NotLoaded
AddSequences, AbortSequences, ... -->  at any time; Inspect, LoadAdapter, UnloadAdapter, OrderSleep
                                       and OrderWake have answers, with their numbers
            <-- AdaptersServed         at first, and after each change
            <-- GenerationReport       after each step, and once a second;
                                       or PoolingReport

With several HTTP processes, the process that starts all of them sends AddClient after
EngineLoaded. The other messages go over the connection of each HTTP process.

Each of these clients counts its work, such as sequences, from a number of its own. The numbers
of two clients do not meet: one would need the work of a year, at thousands of sequences a
second.
"""

from __future__ import annotations

from typing import Final, Literal, Self

from ...config import EngineConfig
from ...errors import (
    AdapterNotFound,
    AdapterRefused,
    InvalidAdapter,
    RequestError,
)
from ...processes import Descriptor, Message
from ...scheduler.generation.counts import SchedulerCounters, SchedulerStatistics
from ...scheduler.pooling.scheduler import PoolingCounters, PoolingStatistics
from ...scheduler.step_cost import StepRates
from ...types.adapter import ServedAdapter
from ...types.ids import SequenceId
from ...types.model_info import ModelInfo
from ...types.not_loaded import NotLoaded
from ...types.output import TokenDelta
from ...types.pooling import PoolingInfo, QueryKey
from ...types.sleep import SleepLevel, SleepState
from ...types.tensors import TensorBytes
from ..core import CoreHoldings
from ..generation.core import SequenceGroup
from ..pooling.core import FlowId, JobId, PoolingBatch

_ID_SHIFT: Final = 40


def find_first_id(client: int) -> int:
    """Return the number of the first work of a client."""
    return client << _ID_SHIFT


def find_client(work: int) -> int:
    """Return the client that has work of a number."""
    return work >> _ID_SHIFT


class StartEngine(Message, frozen=True, kw_only=True):
    """Load a model.

    Args:
      model_kind: as startup.source.ModelKind.
      log_level: as in logging.
      is_shared: clients come by AddClient; else the sender is the only one.
      origin: a name of the model for each line of the log, if there are several.
    """

    config: EngineConfig
    model_kind: Literal["generate", "pooling", "all"]
    log_level: int
    is_shared: bool = False
    origin: str = ""


class EngineLoaded(Message, frozen=True, kw_only=True):
    """The model is loaded.

    Args:
      pooling: the tasks of a model that pools; None if the model generates.
    """

    info: ModelInfo
    pooling: PoolingInfo | None


class AddClient(Message, frozen=True, kw_only=True):
    """Serve another client, over a connection of its own; see CoreHost.serve."""

    number: int
    connection: Descriptor


class AddSequences(Message, frozen=True, kw_only=True):
    """See GenerationCore.add."""

    group: SequenceGroup


class AbortSequences(Message, frozen=True, kw_only=True):
    """See GenerationCore.abort."""

    sequence_ids: tuple[SequenceId, ...]


class LoadAdapter(Message, frozen=True, kw_only=True):
    """See AdapterView.load; AdapterDone with the same number is the answer."""

    number: int
    name: str
    path: str
    replaces: bool


class UnloadAdapter(Message, frozen=True, kw_only=True):
    """See AdapterView.unload; AdapterDone with the same number is the answer."""

    number: int
    name: str


class AdaptersServed(Message, frozen=True, kw_only=True):
    """The adapters that requests may name; see AdapterView."""

    revision: int
    served: tuple[ServedAdapter, ...]


class AdapterRefusal(Message, frozen=True, kw_only=True):
    """The error of a load or an unload.

    Args:
      subject: the name of the adapter, or of the field of AdapterRefused.
    """

    kind: Literal["invalid", "refused", "not found"]
    subject: str
    reason: str = ""

    @classmethod
    def of(cls, error: InvalidAdapter | AdapterRefused | AdapterNotFound) -> Self:
        match error:
            case InvalidAdapter():
                return cls(kind="invalid", subject=error.name, reason=error.reason)
            case AdapterRefused():
                param = error.param or ""
                return cls(kind="refused", subject=param, reason=error.reason)
            case AdapterNotFound():
                return cls(kind="not found", subject=error.name)

    def restore(self) -> RequestError:
        """Return the error."""
        match self.kind:
            case "invalid":
                return InvalidAdapter(self.subject, self.reason)
            case "refused":
                return AdapterRefused(self.subject, self.reason)
            case "not found":
                return AdapterNotFound(self.subject, param="lora_name")


class AdapterDone(Message, frozen=True, kw_only=True):
    """The answer to LoadAdapter or UnloadAdapter; AdaptersServed has come before it.

    Args:
      loaded: the adapter, if LoadAdapter has succeeded.
    """

    number: int
    loaded: ServedAdapter | None = None
    refusal: AdapterRefusal | None = None


class AddInputs(Message, frozen=True, kw_only=True):
    """See PoolingCore.add."""

    batch: PoolingBatch


class AbortInputs(Message, frozen=True, kw_only=True):
    """See PoolingCore.abort."""

    jobs: tuple[JobId, ...]


class CloseFlow(Message, frozen=True, kw_only=True):
    """See PoolingCore.close."""

    flow: FlowId
    kept: tuple[QueryKey, ...]


class Inspect(Message, frozen=True, kw_only=True):
    """See Core.inspect; Inspected with the same number is the answer."""

    number: int
    lost: bool
    process: bool


class Inspected(Message, frozen=True, kw_only=True):
    """The answer to Inspect."""

    number: int
    holdings: CoreHoldings


class OrderSleep(Message, frozen=True, kw_only=True):
    """See SleepView.sleep; OrderDone with the same number is the answer."""

    number: int
    level: SleepLevel
    ends_requests: bool


class OrderWake(Message, frozen=True, kw_only=True):
    """See SleepView.wake; OrderDone with the same number is the answer."""

    number: int


class OrderDone(Message, frozen=True, kw_only=True):
    """The answer to OrderSleep or OrderWake; a report with the state has come before it."""

    number: int


class GenerationReport(Message, frozen=True, kw_only=True):
    """The outputs of a step, and the state of the core; see Core.

    Args:
      num_aborts: messages of aborts that the core has carried out.
    """

    num_aborts: int
    outputs: tuple[TokenDelta, ...] = ()
    statistics: SchedulerStatistics
    counters: SchedulerCounters
    rates: StepRates
    stalled_seconds: float
    sleep: SleepState


class PoolingReport(Message, frozen=True, kw_only=True):
    """The outputs of a step, and the state of the core; see GenerationReport."""

    num_aborts: int
    outputs: tuple[tuple[JobId, TensorBytes], ...] = ()
    statistics: PoolingStatistics
    counters: PoolingCounters
    rates: StepRates
    stalled_seconds: float
    sleep: SleepState


ToEngine = (
    StartEngine
    | AddClient
    | AddSequences
    | AbortSequences
    | AddInputs
    | AbortInputs
    | CloseFlow
    | Inspect
    | LoadAdapter
    | UnloadAdapter
    | OrderSleep
    | OrderWake
)
FromEngine = (
    EngineLoaded
    | NotLoaded
    | GenerationReport
    | PoolingReport
    | Inspected
    | AdaptersServed
    | AdapterDone
    | OrderDone
)
