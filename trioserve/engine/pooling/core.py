"""The core of models that pool: a scheduler, and the loop that runs its plans."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

import trio

from ...executor import Executor
from ...scheduler.pooling.flow_queue import PoolingFlow, PoolingJob
from ...scheduler.pooling.scheduler import (
    PoolingCounters,
    PoolingScheduler,
    PoolingStatistics,
)
from ...scheduler.step_cost import StepRates
from ...types.client import Client
from ...types.pooling import PoolingPlan, PoolingResult, PoolingRow, QueryKey
from ...types.tensors import TensorBytes
from ..core import Core, CoreHoldings, HeldWork
from ..loop import StepLoop
from ..sleep.rules import IdleRule
from ..sleep.sleeper import CoreSleep, Memory

# Numbers of a request and of one of its inputs; the engine assigns them.
FlowId = NewType("FlowId", int)
JobId = NewType("JobId", int)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingBatch:
    """Inputs of a request, which take turns with the inputs of other requests.

    Args:
      first_job: row i is the job first_job + i.
      priority: priority of the flow, the same in all of its batches; lower goes first.
      request_id: of the flow, for reports to people.
    """

    flow: FlowId
    first_job: JobId
    rows: tuple[PoolingRow, ...]
    priority: int = 0
    request_id: str = ""
    client: Client = Client()


PoolingOutputs = Iterable[tuple[JobId, TensorBytes]]


class PoolingCore(Core[PoolingOutputs, PoolingStatistics, PoolingCounters], Protocol):
    """The core of a TensorEngine."""

    def add(self, batch: PoolingBatch) -> None:
        """Let inputs wait for their turns."""

    def abort(self, jobs: Collection[JobId]) -> None:
        """Drop inputs; results of a step in flight may still come."""

    def close(self, flow: FlowId, kept: Sequence[QueryKey]) -> None:
        """End a flow, which gets no further batch, and forget its kept results."""


class LocalPoolingCore:
    """A core in this process.

    Args:
      scheduler: plans steps.
      executor: runs them.
      memory, idle: see CoreSleep.
    """

    def __init__(
        self,
        scheduler: PoolingScheduler,
        executor: Executor[PoolingPlan, PoolingResult],
        *,
        memory: Memory | None = None,
        idle: IdleRule = IdleRule(),
    ) -> None:
        self._scheduler = scheduler
        self._flows: dict[FlowId, PoolingFlow] = {}
        self._jobs: dict[JobId, PoolingJob] = {}
        self._ids: dict[PoolingJob, JobId] = {}
        # The keys of open flows.
        self._kept: set[QueryKey] = set()
        self._deliver: Callable[[PoolingOutputs], None]
        self._loop = StepLoop(executor, scheduler)
        self.sleep = CoreSleep(
            memory,
            idle,
            loop=self._loop,
            is_at_rest=self._is_at_rest,
            # Results are kept for open requests alone, and these keep the core awake.
            forget=lambda: None,
        )

    async def run(
        self,
        deliver: Callable[[PoolingOutputs], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        self._deliver = deliver
        async with trio.open_nursery() as nursery:
            await nursery.start(self._loop.run, self._hand_on)
            nursery.start_soon(self.sleep.run)
            task_status.started()

    def add(self, batch: PoolingBatch) -> None:
        flow = self._flows.setdefault(
            batch.flow, PoolingFlow(batch.priority, batch.request_id, batch.client)
        )
        for number, row in enumerate(batch.rows, batch.first_job):
            job = self._scheduler.add(row, flow)
            self._jobs[JobId(number)] = job
            self._ids[job] = JobId(number)
            if row.keep_as is not None:
                self._kept.add(row.keep_as)
        self.sleep.note_work()
        self._loop.wake()

    def abort(self, jobs: Collection[JobId]) -> None:
        # Unknown jobs have their results already.
        known = [self._jobs.pop(job) for job in jobs if job in self._jobs]
        for job in known:
            del self._ids[job]
        self._scheduler.abort(known)
        self.sleep.note_work()

    def close(self, flow: FlowId, kept: Sequence[QueryKey]) -> None:
        self._flows.pop(flow, None)
        self._forget(kept)
        self.sleep.note_work()

    def end_all(self, has_ended: Callable[[int], bool]) -> None:
        """End everything with the numbers of a client that is gone."""
        self.abort([job for job in self._jobs if has_ended(job)])
        for flow in [each for each in self._flows if has_ended(each)]:
            del self._flows[flow]
        self._forget([key for key in self._kept if has_ended(key)])

    def _is_at_rest(self) -> bool:
        num_releases = self._scheduler.statistics().num_releases
        return not (self._flows or self._ids or num_releases)

    def _forget(self, kept: Sequence[QueryKey]) -> None:
        self._kept.difference_update(kept)
        for key in kept:
            self._scheduler.release(key)
        if kept:
            # An idle device must forget them, too.
            self._loop.wake()

    async def inspect(
        self, *, lost: bool = False, process: bool = False
    ) -> CoreHoldings:
        await trio.lowlevel.checkpoint()
        work = {number: flow.request_id for number, flow in self._flows.items()}
        # The flows of jobs that remain.
        closed = {id(each.flow) for each in self._ids} - {
            id(each) for each in self._flows.values()
        }
        is_idle = not (work or self._ids or self._scheduler.statistics().num_releases)
        return CoreHoldings(
            work=tuple(
                HeldWork(id=number, request_id=request_id)
                for number, request_id in work.items()
            ),
            num_lost_slots=len(closed),
            num_lost_results=self._scheduler.statistics().num_kept if is_idle else 0,
        )

    def after_aborts(self, call: Callable[[], None]) -> None:
        call()

    def statistics(self) -> PoolingStatistics:
        return self._scheduler.statistics()

    def counters(self) -> PoolingCounters:
        return self._scheduler.counters()

    def rates(self) -> StepRates:
        return self._scheduler.rates()

    def stalled_seconds(self) -> float:
        return self._loop.step_age_seconds

    def _hand_on(self, outputs: Iterable[tuple[PoolingJob, TensorBytes]]) -> None:
        answers = []
        for job, tensor in outputs:
            # A job that was dropped while the step ran is unknown now.
            if (number := self._ids.pop(job, None)) is not None:
                del self._jobs[number]
                answers.append((number, tensor))
        self._deliver(answers)
