"""Cores in another process: their calls become messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, Generic, TypeVar

import trio

from ...errors import EngineProcessDied
from ...processes import MessageStream, PeerGone, pack
from ...processes.questions import OpenQuestions
from ...scheduler.generation.counts import SchedulerCounters, SchedulerStatistics
from ...scheduler.pooling.scheduler import PoolingCounters, PoolingStatistics
from ...scheduler.step_cost import StepRates
from ...types.adapter import ServedAdapter
from ...types.ids import SequenceId
from ...types.output import TokenDelta
from ...types.pooling import QueryKey
from ...types.prompt import count_tokens
from ...types.sleep import SleepLevel, SleepState
from ..core import CoreHoldings
from ..generation.adapters import AdapterView
from ..generation.core import LONG_PROMPT, SequenceGroup
from ..pooling.core import FlowId, JobId, PoolingBatch, PoolingOutputs
from ..sleep.view import SleepView
from .messages import (
    AbortInputs,
    AbortSequences,
    AdapterDone,
    AdaptersServed,
    AddInputs,
    AddSequences,
    CloseFlow,
    GenerationReport,
    Inspect,
    Inspected,
    LoadAdapter,
    OrderDone,
    OrderSleep,
    OrderWake,
    PoolingReport,
    UnloadAdapter,
)

# A request with more bytes of tensors is packed in a thread. Starting the thread takes as
# long as copying this many bytes.
_LARGE_TENSORS = 2**18

OutputsT = TypeVar("OutputsT")
StatisticsT = TypeVar("StatisticsT")
CountersT = TypeVar("CountersT")


class RemoteSleep(SleepView):
    """The sleep of a core in another process.

    Args:
      stream: the core's.
    """

    def __init__(self, stream: MessageStream[Any]) -> None:
        super().__init__()
        self._stream = stream
        self._has_ended = False
        # The answers are True.
        self._questions = OpenQuestions[bool]()

    async def sleep(self, level: SleepLevel, *, ends_requests: bool) -> None:
        self.check(level)
        await self._order(
            lambda number: OrderSleep(
                number=number, level=level, ends_requests=ends_requests
            )
        )

    async def wake(self) -> None:
        await self._order(lambda number: OrderWake(number=number))

    def take(self, state: SleepState) -> None:
        """Take a state from a report."""
        self._show(state)

    def note_done(self, number: int) -> None:
        """Note that an order has been carried out."""
        if question := self._questions.find(number):
            question.take(True)

    def end(self) -> None:
        """Note that the process has ended."""
        self._has_ended = True
        self._questions.end_all()

    async def _order(self, make: Callable[[int], OrderSleep | OrderWake]) -> None:
        with self._questions.open() as question:
            if not self._has_ended:
                self._stream.send_nowait(make(question.number))
                await question.wait()
        if not question.answers:
            raise EngineProcessDied("the engine process has ended")


class _RemoteCore(Generic[OutputsT, StatisticsT, CountersT]):
    """Keeps the last report of a core in another process.

    Args:
      stream: connection to the process, whose model is loaded.
      describe_end: says how the process ended, after it has closed the connection.
    """

    def __init__(
        self, stream: MessageStream[Any], describe_end: Callable[[], Awaitable[str]]
    ) -> None:
        self._stream = stream
        self._describe_end = describe_end
        self._report: Any = None
        self._heard_at = 0.0
        self._num_aborts = 0
        # Calls that wait until the process has carried out so many aborts.
        self._after_aborts: deque[tuple[int, Callable[[], None]]] = deque()
        self._has_ended = False
        self._questions = OpenQuestions[CoreHoldings]()
        self.sleep = RemoteSleep(stream)

    async def run(
        self,
        deliver: Callable[[OutputsT], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Receive the reports of the process until cancelled.

        Raises:
          EngineProcessDied
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stream.run)
            try:
                await self._receive()
                task_status.started()
                while True:
                    await self._receive()
                    if self._report.outputs:
                        deliver(self._report.outputs)
            except PeerGone:
                raise EngineProcessDied(await self._describe_end()) from None
            finally:
                self._end()

    async def inspect(
        self, *, lost: bool = False, process: bool = False
    ) -> CoreHoldings:
        with self._questions.open() as question:
            if not self._has_ended:
                message = Inspect(number=question.number, lost=lost, process=process)
                self._stream.send_nowait(message)
                await question.wait()
        if not question.answers:
            raise EngineProcessDied("the engine process has ended")
        return question.answers[0]

    def after_aborts(self, call: Callable[[], None]) -> None:
        self._after_aborts.append((self._num_aborts, call))
        done = self._num_aborts if self._has_ended else self._report.num_aborts
        self._make_calls(done)

    def statistics(self) -> StatisticsT:
        statistics: StatisticsT = self._report.statistics
        return statistics

    def counters(self) -> CountersT:
        counters: CountersT = self._report.counters
        return counters

    def rates(self) -> StepRates:
        if self._report is None:
            return StepRates()
        rates: StepRates = self._report.rates
        return rates

    def stalled_seconds(self) -> float:
        seconds: float = self._report.stalled_seconds
        return seconds + trio.current_time() - self._heard_at

    async def _receive(self) -> None:
        """Receive the next report, and what comes before it."""
        while True:
            report = await self._stream.receive()
            if isinstance(report, (GenerationReport, PoolingReport)):
                break
            self._take(report)
        self._report = report
        self._heard_at = trio.current_time()
        self._make_calls(report.num_aborts)
        self.sleep.take(report.sleep)

    def _take(self, message: object) -> None:
        """Take a message that is not a report."""
        if isinstance(message, OrderDone):
            self.sleep.note_done(message.number)
            return
        assert isinstance(message, Inspected), "a core that runs sends nothing else"
        if question := self._questions.find(message.number):
            question.take(message.holdings)

    def _end(self) -> None:
        """Note that the process ends, and that all that it held is free."""
        self._has_ended = True
        self._make_calls(self._num_aborts)
        self._questions.end_all()
        self.sleep.end()

    def _send_abort(self, message: AbortSequences | AbortInputs | CloseFlow) -> None:
        self._num_aborts += 1
        self._stream.send_nowait(message)

    def _make_calls(self, num_aborts: int) -> None:
        """Make the calls that wait for so many aborts, or for fewer."""
        while self._after_aborts and self._after_aborts[0][0] <= num_aborts:
            self._after_aborts.popleft()[1]()


class RemoteAdapters(AdapterView):
    """The adapters of an engine process.

    Args:
      stream: connection to the process.
    """

    def __init__(self, stream: MessageStream[Any]) -> None:
        super().__init__()
        self._stream = stream
        self._questions = OpenQuestions[AdapterDone]()
        self._has_ended = False

    async def load(
        self, name: str, path: str, *, replaces: bool = False
    ) -> ServedAdapter:
        done = await self._ask(
            lambda number: LoadAdapter(
                number=number, name=name, path=path, replaces=replaces
            )
        )
        # Not from `served`: it may be unloaded already.
        assert done.loaded is not None, "it was not refused"
        return done.loaded

    async def unload(self, name: str) -> None:
        await self._ask(lambda number: UnloadAdapter(number=number, name=name))

    async def _ask(
        self, make: Callable[[int], LoadAdapter | UnloadAdapter]
    ) -> AdapterDone:
        """Send a message, and wait until the process has done it.

        Raises:
          AdapterRefused, InvalidAdapter, AdapterNotFound, EngineProcessDied
        """
        with self._questions.open() as question:
            if not self._has_ended:
                self._stream.send_nowait(make(question.number))
                await question.wait()
        if not question.answers:
            raise EngineProcessDied("the engine process has ended")
        if (refusal := question.answers[0].refusal) is not None:
            raise refusal.restore()
        return question.answers[0]

    def take(self, message: AdaptersServed | AdapterDone) -> None:
        """Take a message of the process."""
        if isinstance(message, AdaptersServed):
            self._show(message.served, message.revision)
        elif question := self._questions.find(message.number):
            question.take(message)

    def end(self) -> None:
        """Note that the process has ended; no answers follow."""
        self._has_ended = True
        self._questions.end_all()


class RemoteCore(
    _RemoteCore[Iterable[TokenDelta], SchedulerStatistics, SchedulerCounters]
):
    """The GenerationCore of an engine process."""

    def __init__(
        self, stream: MessageStream[Any], describe_end: Callable[[], Awaitable[str]]
    ) -> None:
        super().__init__(stream, describe_end)
        self._packing = trio.CapacityLimiter(1)
        self._adapters = RemoteAdapters(stream)

    @property
    def adapters(self) -> AdapterView:
        return self._adapters

    async def add(self, group: SequenceGroup) -> None:
        message = AddSequences(group=group)
        if not _is_large(group):
            self._stream.send_nowait(message)
            return
        # Not abandoned on cancel: the thread reads memory of the request.
        packed = await trio.to_thread.run_sync(pack, message, limiter=self._packing)
        self._stream.post_nowait(packed)

    def abort(self, sequence_ids: Collection[SequenceId]) -> None:
        self._send_abort(AbortSequences(sequence_ids=tuple(sequence_ids)))

    def _take(self, message: object) -> None:
        if isinstance(message, (AdaptersServed, AdapterDone)):
            self._adapters.take(message)
        else:
            super()._take(message)

    def _end(self) -> None:
        super()._end()
        self._adapters.end()


class RemotePoolingCore(
    _RemoteCore[PoolingOutputs, PoolingStatistics, PoolingCounters]
):
    """The PoolingCore of an engine process."""

    def add(self, batch: PoolingBatch) -> None:
        self._stream.send_nowait(AddInputs(batch=batch))

    def abort(self, jobs: Collection[JobId]) -> None:
        self._send_abort(AbortInputs(jobs=tuple(jobs)))

    def close(self, flow: FlowId, kept: Sequence[QueryKey]) -> None:
        self._send_abort(CloseFlow(flow=flow, kept=tuple(kept)))


def _is_large(group: SequenceGroup) -> bool:
    """Return whether packing the group would hold up the event loop."""
    num_bytes = sum(
        len(tensor.data)
        for prompt in group.prompts
        for item in prompt.embedded
        for tensor in item.tensors.values()
    )
    return count_tokens(group.prompts) > LONG_PROMPT or num_bytes > _LARGE_TENSORS
