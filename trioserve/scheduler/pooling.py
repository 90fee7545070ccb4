"""The planning of steps of pooling models: whole inputs, in turns, up to a budget.

An input is one pass of the model, so it owns no blocks and is never resumed. The
scheduler only decides the order. Requests differ in size by a factor of thousands.
First come, first served would let one question wait for a whole library of documents;
so requests share the device by *fair queueing*. The clock counts the tokens that were
read. A new request has its turn at once. After an input of 512 tokens beside two other
requests it has its next turn 3 * 512 tokens later.

    clock       0       512     521    1033
    request A   |  512  |       |  512  |  512  | ...
    request B           | 9 |                             came at 512

A level of priority postpones a turn by LEVEL_TOKENS. Turns are times, and later requests
have later turns: so a bounded number of tokens passes each input, and none waits for ever.

Source: Goyal, Vin and Cheng 1996 (Start-time Fair Queueing), section 2. There the clock is
the turn of the input that is being read. That clock stands still while short requests
follow each other, so a long request could wait for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
import heapq
import itertools

from ..types.pooling import PoolingPlan, PoolingResult, PoolingRow, QueryKey
from ..types.tensors import TensorBytes
from .step_cost import StepCost, StepRates, StepSize

# Tokens that one level of priority is worth. A guess: a small encoder on a CPU reads this
# many in ten seconds.
LEVEL_TOKENS = 65_536


class PoolingFlow:
    """The inputs of one request, which take turns with those of other requests.

    Args:
      priority: requests with a lower number go first.
      request_id: for reports to people.
    """

    def __init__(self, priority: int, request_id: str = "") -> None:
        self.priority = priority
        self.request_id = request_id
        # The turn of its next input, in tokens of the clock.
        self.turn = 0
        self.num_waiting = 0
        # Waiting inputs, and aborted ones that have not been dropped yet.
        self.jobs: deque[PoolingJob] = deque()
        # Number of its valid entry in the scheduler's heap.
        self.number = -1

    @property
    def place(self) -> int:
        """The flow with the lowest place is next."""
        return self.turn + LEVEL_TOKENS * self.priority


class PoolingJob:
    """One input on its way through the scheduler."""

    __slots__ = ("row", "flow", "is_waiting")

    def __init__(self, row: PoolingRow, flow: PoolingFlow) -> None:
        self.row = row
        self.flow = flow
        self.is_waiting = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingStatistics:
    """The present state; equal to a fresh scheduler's when all is done.

    Args:
      num_running: inputs of steps in flight.
      num_waiting: inputs that no step has yet.
      num_kept: results that the device keeps, according to the last step.
      num_releases: keys whose release no step has reported to the device yet.
    """

    num_running: int
    num_waiting: int
    num_kept: int
    num_releases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingCounters:
    """Counts since the start; see the table of metrics in docs/operations.rst."""

    num_steps: int
    num_inputs: int
    num_input_tokens: int
    step_seconds: float = 0.0


class PoolingScheduler:
    """Plans the steps of a pooling model.

    Args:
      max_num_seqs: the most inputs of one step.
      max_num_batched_tokens: the most tokens of one step; a longer input is a step by
        itself.
    """

    def __init__(self, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        # (place, number, flow) of each flow with waiting inputs, and old entries.
        self._heap: list[tuple[int, int, PoolingFlow]] = []
        self._num_flows = 0
        self._num_waiting = 0
        # Tokens of all planned inputs.
        self._clock = 0
        self._in_flight: dict[int, list[PoolingJob]] = {}
        self._releases: list[QueryKey] = []
        self._num_kept = 0
        self._numbers = itertools.count()
        self._step_ids = itertools.count()
        self._num_inputs = 0
        self._num_input_tokens = 0
        self._num_steps = 0
        self._step_seconds = 0.0
        self._cost = StepCost()

    def add(self, row: PoolingRow, flow: PoolingFlow) -> PoolingJob:
        """Let an input wait for its turn.

        The inputs of a flow are read in order, so a row may be compared with an earlier
        one that is kept.
        """
        job = PoolingJob(row, flow)
        flow.jobs.append(job)
        flow.num_waiting += 1
        self._num_waiting += 1
        if flow.num_waiting == 1:
            self._num_flows += 1
            flow.turn = max(flow.turn, self._clock)
            self._push(flow)
        return job

    def abort(self, jobs: Iterable[PoolingJob]) -> None:
        """Drop waiting inputs; an input of a step in flight ends with the step."""
        for job in jobs:
            if job.is_waiting:
                self._leave_queue(job)
                _drop_aborted(job.flow)
        # Old entries stay until they are the majority, so the cost of rebuilding the heap
        # is spread over many of them.
        if len(self._heap) > 64 and len(self._heap) > 2 * self._num_flows:
            self._heap = [entry for entry in self._heap if _is_valid(entry)]
            heapq.heapify(self._heap)

    def release(self, key: QueryKey) -> None:
        """Let the next step forget the result under a key, if there is one."""
        self._releases.append(key)

    def schedule(self) -> PoolingPlan | None:
        """Plan a step, or return None if no input waits."""
        jobs = self._take_jobs()
        if not jobs and not self._releases:
            return None
        plan = PoolingPlan(
            step_id=next(self._step_ids),
            rows=tuple(job.row for job in jobs),
            releases=tuple(self._releases),
        )
        self._releases.clear()
        self._in_flight[plan.step_id] = jobs
        return plan

    def update(
        self, plan: PoolingPlan, result: PoolingResult, seconds: float = 0.0
    ) -> Iterable[tuple[PoolingJob, TensorBytes]]:
        """Take in the result of a step; returns the tensor of each of its inputs.

        Args:
          seconds: how long the device was busy with the step.
        """
        self._step_seconds += seconds
        jobs = self._in_flight.pop(plan.step_id)
        self._num_kept = result.num_kept
        self._num_steps += 1
        self._num_inputs += len(jobs)
        self._num_input_tokens += plan.num_tokens
        self._cost.learn(_measure(plan), seconds)
        return zip(jobs, result.tensors, strict=True)

    def statistics(self) -> PoolingStatistics:
        return PoolingStatistics(
            num_running=sum(map(len, self._in_flight.values())),
            num_waiting=self._num_waiting,
            num_kept=self._num_kept,
            num_releases=len(self._releases),
        )

    def counters(self) -> PoolingCounters:
        return PoolingCounters(
            num_steps=self._num_steps,
            num_inputs=self._num_inputs,
            num_input_tokens=self._num_input_tokens,
            step_seconds=self._step_seconds,
        )

    def rates(self) -> StepRates:
        """Return the measured speed of steps."""
        return self._cost.list_rates()

    def _take_jobs(self) -> list[PoolingJob]:
        jobs: list[PoolingJob] = []
        budget = self._max_num_batched_tokens
        while len(jobs) < self._max_num_seqs and (flow := self._find_next()):
            num_tokens = flow.jobs[0].row.input.num_tokens
            budget -= num_tokens
            if budget < 0 and jobs:
                break
            # Each waiting flow gets as many tokens before this one's next turn.
            flow.turn += num_tokens * self._num_flows
            self._clock += num_tokens
            jobs.append(flow.jobs.popleft())
            self._leave_queue(jobs[-1])
            if flow.num_waiting:
                self._push(flow)
        return jobs

    def _find_next(self) -> PoolingFlow | None:
        """Return the next flow, with its next job in front, or None."""
        while self._heap and not _is_valid(self._heap[0]):
            heapq.heappop(self._heap)
        if not self._heap:
            return None
        flow = self._heap[0][2]
        while not flow.jobs[0].is_waiting:
            flow.jobs.popleft()
        return flow

    def _push(self, flow: PoolingFlow) -> None:
        flow.number = next(self._numbers)
        heapq.heappush(self._heap, (flow.place, flow.number, flow))

    def _leave_queue(self, job: PoolingJob) -> None:
        job.is_waiting = False
        job.flow.num_waiting -= 1
        self._num_waiting -= 1
        self._num_flows -= job.flow.num_waiting == 0


def _measure(plan: PoolingPlan) -> StepSize:
    size = StepSize()
    for row in plan.rows:
        size.add_row(0, row.input.num_tokens)
    return size


def _is_valid(entry: tuple[int, int, PoolingFlow]) -> bool:
    _, number, flow = entry
    return flow.number == number and flow.num_waiting > 0


def _drop_aborted(flow: PoolingFlow) -> None:
    """Drop the aborted inputs of a flow, once they are the majority."""
    if len(flow.jobs) > 64 and len(flow.jobs) > 2 * flow.num_waiting:
        flow.jobs = deque(job for job in flow.jobs if job.is_waiting)
