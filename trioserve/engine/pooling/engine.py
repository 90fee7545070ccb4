"""The engine of models that pool: it holds requests and gives them the tensors of their inputs.

open_request --> pool --> core --> outputs --> pool
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
import itertools

import trio

from ...config import SchedulingPolicy
from ...observe import Owner
from ...scheduler.pooling.scheduler import PoolingCounters, PoolingStatistics
from ...types.client import Client
from ...types.model_info import ModelInfo
from ...types.pooling import PoolingInfo, PoolingParams, PoolingRow, QueryKey
from ..backlog import Forecast
from ..engine import Engine, check_priority
from .backlog import PoolingBacklog, PoolingBacklogStatistics
from .core import FlowId, JobId, PoolingBatch, PoolingCore, PoolingOutputs
from .request import Results, TensorRequest

# Requests that get their results in one turn of the event loop. A step may complete a
# hundred requests, and each takes a millisecond to write its answer and to read its next
# inputs. Other tasks must not wait for all of them.
_ANSWERS_PER_TURN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEngineStatistics:
    """The present state; equal to a fresh engine's when all is done.

    Args:
      num_requests: open requests.
      num_flows: open requests that the core may have.
      num_reserved: inputs that they announced.
      num_jobs: inputs that have no result yet.
      num_queued_tokens: tokens of inputs that were not read.
    """

    num_requests: int
    num_flows: int
    num_reserved: int
    num_jobs: int
    num_queued_tokens: int
    backlog: PoolingBacklogStatistics
    scheduler: PoolingStatistics


class TensorEngine(Engine[PoolingCore, PoolingOutputs, PoolingCounters]):
    """Turns token ids into tensors, for any number of requests.

    Args:
      core, info, max_queued_tokens, scheduling_policy: see Engine.
      pooling: the tasks of the model.
      max_num_inputs: the most inputs of all open requests together; more are refused.
      first_id: the first number of its requests, inputs and kept results; see
        process/messages.py.
    """

    _places = ("texts", "input")

    def __init__(
        self,
        core: PoolingCore,
        *,
        info: ModelInfo,
        pooling: PoolingInfo,
        max_num_inputs: int,
        max_queued_tokens: int | None = None,
        scheduling_policy: SchedulingPolicy = "fcfs",
        first_id: int = 0,
    ) -> None:
        self._backlog = PoolingBacklog()
        super().__init__(
            core,
            info=info,
            backlog=self._backlog,
            max_num_places=max_num_inputs,
            max_queued_tokens=max_queued_tokens,
            scheduling_policy=scheduling_policy,
        )
        self.pooling = pooling
        self._keys = itertools.count(first_id)
        self._flows = itertools.count(first_id)
        self._next_job = first_id
        self._open: dict[FlowId, TensorRequest] = {}
        self._owners: dict[JobId, tuple[Results, int]] = {}
        # Complete results whose requests have not been woken yet.
        self._completed: deque[Results] = deque()
        self._has_completed = trio.Event()

    def statistics(self) -> TensorEngineStatistics:
        """Return the present state."""
        return TensorEngineStatistics(
            num_requests=len(self._requests),
            num_flows=len(self._open),
            num_reserved=self._backlog.places.total,
            num_jobs=len(self._owners),
            num_queued_tokens=self._backlog.queued_tokens.total,
            backlog=self._backlog.statistics(),
            scheduler=self._core.statistics(),
        )

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hand_out)
            await super().run(task_status=task_status)

    def forecast(self, num_tokens: int, client: Client) -> Forecast | None:
        """Forecast the time of a request that comes now; see PoolingBacklog."""
        return self._backlog.predict(self._core.rates(), num_tokens, client)

    @contextmanager
    def open_request(
        self,
        num_inputs: int,
        params: PoolingParams,
        *,
        num_tokens: int = 0,
        priority: int = 0,
        client: Client = Client(),
        param: str = "input",
        on_submit: Callable[[], None] = lambda: None,
    ) -> Iterator[TensorRequest]:
        """Take a request's inputs until the block is left.

        Leaving the block drops the inputs that have no result yet, and the results that
        the device keeps for the request.

        Args:
          num_inputs: number of inputs that will come, about; a long text that is cut
            into chunks counts once.
          num_tokens: their tokens, about.
          client: the one that it belongs to.
          priority: requests with a lower number go first; equals take turns.
          param: the request's field with the inputs, for errors.
          on_submit: is called when inputs have been given to the core.

        Raises:
          QueueFull: other requests have too many inputs or tokens.
          InvalidParameter, TaskNotServed: the model does not serve the task, or the
            priority is refused; see check_priority.
          EngineDied, ShuttingDown: no engine runs.
        """
        check_priority(priority, self._scheduling_policy)
        self.pooling.check(params, self.info.name)
        self.check_room(num_inputs, num_tokens, client, param=param)
        request = TensorRequest(
            self, params, FlowId(next(self._flows)), priority, client, on_submit
        )
        self._open[request.flow] = request
        try:
            with (
                self._requests.hold(request),
                self._backlog.hold(client, num_inputs),
            ):
                self._note_held()
                try:
                    yield request
                finally:
                    self.abort(request.kept.values())
        finally:
            del self._open[request.flow]
            self._note_held()
            self._core.close(request.flow, tuple(request.kept))

    # The door of TensorRequest.

    def add(
        self, rows: Sequence[PoolingRow], request: TensorRequest, results: Results
    ) -> list[JobId]:
        """Queue rows; `results` gets their tensors."""
        # A request may queue its documents after the engine has ended.
        self._requests.check_alive()
        first = self._next_job
        self._next_job += len(rows)
        jobs = [JobId(number) for number in range(first, self._next_job)]
        for index, job in enumerate(jobs):
            self._owners[job] = results, index
            self._backlog.add(job, rows[index].input.num_tokens, request.client)
        self._note_work()
        self._core.add(
            PoolingBatch(
                flow=request.flow,
                first_job=JobId(first),
                rows=tuple(rows),
                priority=request.priority,
                client=request.client,
                request_id="" if request.owner is None else str(request.owner.id),
            )
        )
        return jobs

    def abort(self, jobs: Collection[JobId]) -> None:
        """Drop jobs that have no result yet."""
        living = [job for job in jobs if self._owners.pop(job, None)]
        for job in living:
            self._backlog.drop(job)
        if living:
            self._core.abort(living)

    def next_key(self) -> QueryKey:
        """Return a key that no other request has."""
        return QueryKey(next(self._keys))

    def _list_work(self) -> dict[int, Owner | None]:
        return {number: request.owner for number, request in self._open.items()}

    def _forget_jobs(self) -> None:
        self._owners.clear()
        self._backlog.clear()

    def _deliver(self, outputs: PoolingOutputs) -> None:
        for job, tensor in outputs:
            owner = self._owners.pop(job, None)
            # A core in another process may not have heard of an abort yet.
            if owner is not None:
                self._backlog.drop(job)
                results, index = owner
                if results.set(index, tensor):
                    self._completed.append(results)
        self._has_completed.set()
        self._note_work()

    async def _hand_out(self) -> None:
        while True:
            await self._has_completed.wait()
            self._has_completed = trio.Event()
            while self._completed:
                for _ in range(min(_ANSWERS_PER_TURN, len(self._completed))):
                    self._completed.popleft().hand_out()
                await trio.lowlevel.checkpoint()
