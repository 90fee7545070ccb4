"""The engine that pools: requests on one side, a core that steps on the other.

open_request --> pool --> core --> outputs --> pool
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
import itertools

import trio

from ...config import SchedulingPolicy
from ...errors import InvalidParameter, QueueFull
from ...observe import Pace
from ...scheduler import PoolingCounters, PoolingStatistics
from ...types.model_info import ModelInfo
from ...types.pooling import (
    PoolingInfo,
    PoolingInput,
    PoolingParams,
    PoolingRow,
    QueryKey,
)
from ...types.tensors import TensorBytes
from ..priority import check_priority
from ..requests import OpenRequests
from .admission import check_input, check_params
from .core import FlowId, JobId, PoolingBatch, PoolingCore, PoolingOutputs

# Requests that are answered in one turn of the event loop. A step may have read the texts
# of a hundred, and to write an answer and read the next question takes a millisecond: what
# else the loop has to do must not wait for all of them.
_ANSWERS_PER_TURN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingEngineStatistics:
    """What is held at this moment; equal to a fresh engine's when all is done.

    Args:
      num_requests: those that are open.
      num_reserved: inputs that they announced.
    """

    num_requests: int
    num_reserved: int
    scheduler: PoolingStatistics


class PoolingLoop:
    """Runs in a nursery, serves any number of requests.

    Args:
      core: what computes, here or in another process.
      info, pooling: bounds every input is checked against.
      max_num_inputs: those of all open requests together; more are refused.
      scheduling_policy: whether requests may have a priority.
    """

    def __init__(
        self,
        core: PoolingCore,
        *,
        info: ModelInfo,
        pooling: PoolingInfo,
        max_num_inputs: int,
        scheduling_policy: SchedulingPolicy = "fcfs",
    ) -> None:
        self.info = info
        self.pooling = pooling
        self._core = core
        self._max_num_inputs = max_num_inputs
        self._scheduling_policy: SchedulingPolicy = scheduling_policy
        self._num_reserved = 0
        self._keys = itertools.count()
        self._flows = itertools.count()
        self._next_job = 0
        self._owners: dict[JobId, tuple[_Results, int]] = {}
        # What is complete and was not handed out yet.
        self._whole: deque[_Results] = deque()
        self._has_whole = trio.Event()
        self._requests = OpenRequests()
        self._pace = Pace()

    @property
    def is_alive(self) -> bool:
        return self._requests.is_alive

    def check_alive(self) -> None:
        """Raise why no request can be opened now, if none can."""
        self._requests.check_alive()

    def statistics(self) -> PoolingEngineStatistics:
        return PoolingEngineStatistics(
            num_requests=len(self._requests),
            num_reserved=self._num_reserved,
            scheduler=self._core.statistics(),
        )

    def counters(self) -> PoolingCounters:
        return self._core.counters()

    def stalled_seconds(self) -> float:
        """Return for how long the running step has given nothing; 0 where none runs."""
        return self._core.stalled_seconds()

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Step until cancelled; see OpenRequests.serve."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hand_out)
            await self._requests.serve(
                partial(self._core.run, self._deliver, task_status=task_status)
            )

    def close_requests(self, error: Exception) -> None:
        """Raise `error` in every open request and in whoever would open one."""
        self._requests.close(error)

    @contextmanager
    def open_request(
        self,
        num_inputs: int,
        params: PoolingParams,
        *,
        priority: int = 0,
        param: str = "input",
        on_submit: Callable[[], None] = lambda: None,
    ) -> Iterator[PoolingRequest]:
        """Take a request's inputs until the block is left.

        What the request still waits for is given up then, and the device forgets what
        it kept for it.

        Args:
          num_inputs: how many there will be, about; chunks of long texts not counted.
          priority: requests with a lower number go first; equals take turns.
          param: the request's field that brings them, for errors.
          on_submit: is called when inputs have been given to the core.

        Raises:
          QueueFull: other requests have too many.
          InvalidParameter, TaskNotServed: the model does not do what is asked for, or
            the priority is refused; see check_priority.
          EngineDied, ShuttingDown: there is no engine any more.
        """
        self._requests.check_alive()
        check_priority(priority, self._scheduling_policy)
        check_params(params, self.info, self.pooling)
        self._check_room(num_inputs, param)
        request = PoolingRequest(
            self, params, FlowId(next(self._flows)), priority, on_submit
        )
        self._reserve(num_inputs)
        try:
            with self._requests.hold(request):
                yield request
        finally:
            self._reserve(-num_inputs)
            self._forget(request)

    def _check_room(self, num_inputs: int, param: str) -> None:
        limit = self._max_num_inputs
        if num_inputs > limit:
            raise InvalidParameter(
                param, f"{num_inputs} texts were sent, {limit} are the most"
            )
        if self._num_reserved + num_inputs > limit:
            raise QueueFull(
                limit=self._num_reserved,
                retry_after_seconds=self._pace.estimate_seconds(
                    trio.current_time(), self._num_reserved
                ),
            )

    def _reserve(self, num_inputs: int) -> None:
        self._num_reserved += num_inputs
        self._pace.observe(trio.current_time(), self._num_reserved)

    def _forget(self, request: PoolingRequest) -> None:
        self.abort(request.kept.values())
        self._core.close(request.flow, tuple(request.kept))

    # What PoolingRequest does with us.

    def add(
        self,
        rows: Sequence[PoolingRow],
        request: PoolingRequest,
        results: _Results,
    ) -> list[JobId]:
        # A request may come to its documents after the loop has ended.
        self._requests.check_alive()
        first = self._next_job
        self._next_job += len(rows)
        jobs = [JobId(number) for number in range(first, self._next_job)]
        for index, job in enumerate(jobs):
            self._owners[job] = results, index
        self._core.add(
            PoolingBatch(
                flow=request.flow,
                first_job=JobId(first),
                rows=tuple(rows),
                priority=request.priority,
            )
        )
        return jobs

    def abort(self, jobs: Collection[JobId]) -> None:
        living = [job for job in jobs if self._owners.pop(job, None)]
        if living:
            self._core.abort(living)

    def next_key(self) -> QueryKey:
        return QueryKey(next(self._keys))

    def _deliver(self, outputs: PoolingOutputs) -> None:
        for job, tensor in outputs:
            owner = self._owners.pop(job, None)
            # Of what was given up here, another process may not have heard yet.
            if owner is not None:
                results, index = owner
                if results.set(index, tensor):
                    self._whole.append(results)
        self._has_whole.set()

    async def _hand_out(self) -> None:
        while True:
            await self._has_whole.wait()
            self._has_whole = trio.Event()
            while self._whole:
                for _ in range(min(_ANSWERS_PER_TURN, len(self._whole))):
                    self._whole.popleft().hand_out()
                await trio.lowlevel.checkpoint()


class PoolingRequest:
    """One request's inputs; see PoolingLoop.open_request.

    Attributes:
      kept: what the device keeps for it, or will.
      flow, priority: by which its inputs take turns with those of others.
    """

    def __init__(
        self,
        loop: PoolingLoop,
        params: PoolingParams,
        flow: FlowId,
        priority: int,
        on_submit: Callable[[], None],
    ) -> None:
        self.kept: dict[QueryKey, JobId] = {}
        self.flow = flow
        self.priority = priority
        self._loop = loop
        self._params = params
        self._on_submit = on_submit
        self._open: set[_Results] = set()

    async def pool(
        self,
        inputs: Sequence[PoolingInput],
        *,
        compare_with: Sequence[QueryKey] | None = None,
    ) -> list[TensorBytes]:
        """Read inputs and wait for what they give, in their order.

        Args:
          compare_with: for each of them whose similarity with it is wanted instead.

        Raises:
          InvalidParameter, ContextLengthExceeded: an input is not for this model.
          EngineDied, ShuttingDown: it will never be read.
        """
        rows = [
            PoolingRow(
                input=each,
                params=self._params,
                compare_with=None if compare_with is None else compare_with[index],
            )
            for index, each in enumerate(inputs)
        ]
        for each in inputs:
            check_input(each, self._loop.info)
        results = _Results(len(rows))
        jobs = self._loop.add(rows, self, results)
        self._on_submit()
        self._open.add(results)
        try:
            return await results.wait()
        finally:
            self._open.remove(results)
            self._loop.abort(jobs)

    def keep(self, each: PoolingInput) -> QueryKey:
        """Have an input read and its result kept on the device, without waiting for it.

        Raises:
          InvalidParameter, ContextLengthExceeded: the input is not for this model.
        """
        check_input(each, self._loop.info)
        key = self._loop.next_key()
        row = PoolingRow(input=each, params=self._params, keep_as=key)
        [self.kept[key]] = self._loop.add([row], self, _Results(1))
        self._on_submit()
        return key

    def fail(self, error: Exception) -> None:
        for results in self._open:
            results.fail(error)


class _Results:
    """What some inputs give, until all of it is there."""

    def __init__(self, num_inputs: int) -> None:
        self._tensors: list[TensorBytes | None] = [None] * num_inputs
        self._num_left = num_inputs
        self._error: Exception | None = None
        self._is_over = trio.Event()

    def set(self, index: int, tensor: TensorBytes) -> bool:
        """Take what an input gave; returns whether it was the last one."""
        self._tensors[index] = tensor
        self._num_left -= 1
        return self._num_left == 0

    def hand_out(self) -> None:
        """Let whoever waits go on."""
        self._is_over.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._is_over.set()

    async def wait(self) -> list[TensorBytes]:
        if self._tensors:
            await self._is_over.wait()
        if self._error is not None and self._num_left:
            raise self._error
        tensors = [tensor for tensor in self._tensors if tensor is not None]
        assert len(tensors) == len(self._tensors), "each input has a result"
        return tensors
