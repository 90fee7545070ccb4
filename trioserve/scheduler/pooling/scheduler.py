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

Clients share the device by their weights (client_shares.py), and the requests of each take
turns in this way. Each client then has its own clock.

Source: Goyal, Vin and Cheng 1996 (Start-time Fair Queueing), section 2. There the clock is
the turn of the input that is being read. That clock stands still while short requests
follow each other, so a long request could wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
import itertools

from ...types.pooling import PoolingPlan, PoolingResult, PoolingRow, QueryKey
from ...types.tensors import TensorBytes
from ..client_shares import ClientShares
from ..step_cost import StepCost, StepRates, StepSize
from .flow_queue import FlowQueue, PoolingFlow, PoolingJob


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
    """Counts since the start; see the table of metrics in docs/metrics.rst."""

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
        self._shares = ClientShares(FlowQueue)
        self._num_waiting = 0
        self._in_flight: dict[int, list[PoolingJob]] = {}
        self._releases: list[QueryKey] = []
        self._num_kept = 0
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
        self._num_waiting += 1
        self._shares.enter(flow.client)
        self._shares.start_waiting(flow.client).add(job)
        return job

    def abort(self, jobs: Iterable[PoolingJob]) -> None:
        """Drop waiting inputs; an input of a step in flight ends with the step."""
        waiting = [job for job in jobs if job.is_waiting]
        queues = {self._shares.find(job.flow.client) for job in waiting}
        for job in waiting:
            self._num_waiting -= 1
            self._shares.end_waiting(job.flow.client).drop(job)
            self._shares.leave(job.flow.client)
        for queue in queues:
            queue.compact()

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
        for job in jobs:
            self._shares.leave(job.flow.client)
        return zip(jobs, result.tensors, strict=True)

    def list_started(self, plan: PoolingPlan) -> tuple[()]:
        """Report nothing: an input has no part of its result before the whole."""
        return ()

    @property
    def is_steady(self) -> bool:
        """False: each step has other inputs."""
        return False

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
        """Return the measured speed of steps.

        A token's seconds have their part of the fixed ones of a full step.
        """
        rates = self._cost.list_rates()
        fixed = rates.fixed / self._max_num_batched_tokens
        return replace(rates, token=rates.token + fixed)

    def _take_jobs(self) -> list[PoolingJob]:
        jobs: list[PoolingJob] = []
        budget = self._max_num_batched_tokens
        while len(jobs) < self._max_num_seqs and (job := self._find_next()):
            num_tokens = job.row.input.num_tokens
            budget -= num_tokens
            if budget < 0 and jobs:
                break
            self._shares.end_waiting(job.flow.client).pop(job)
            self._shares.charge(job.flow.client, num_tokens)
            self._num_waiting -= 1
            jobs.append(job)
        return jobs

    def _find_next(self) -> PoolingJob | None:
        for queue in self._shares:
            if (job := queue.peek()) is not None:
                return job
        return None


def _measure(plan: PoolingPlan) -> StepSize:
    size = StepSize()
    for row in plan.rows:
        size.add_row(0, row.input.num_tokens)
    return size
