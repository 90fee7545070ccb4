"""Decides which inputs a pooling model reads next: whole ones, by turns, up to a budget.

An input is one pass of the model, so there are no blocks to own and nothing is resumed.
What is left to decide is who goes first. Requests differ by a factor of thousands, and
first come, first served would let a question wait for all of somebody's library; so
they share the device by *start-time fair queueing*: an input's turn is where its request
would stand if every request that waits had been given the same number of tokens.

    request A   |  512  |  512  |  512  |  512  | ...     its inputs, by turn
    request B           | 9 |                             came when A had had 512

Source: Goyal, Vin and Cheng 1996 (Start-time Fair Queueing), section 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
import heapq
import itertools

from ..pooling import (
    KeptKey,
    PoolingPlan,
    PoolingResult,
    PoolingRow,
)
from ..steps import TensorBytes


class PoolingFlow:
    """The inputs of one request, which take turns with those of others.

    Args:
      priority: the lower goes first, whatever turns there are among others.
    """

    def __init__(self, priority: int) -> None:
        self.priority = priority
        # Where the next of its inputs stands, in tokens.
        self.next_turn = 0


class PoolingJob:
    """One input on its way through the scheduler."""

    __slots__ = ("row", "order", "is_waiting")

    def __init__(self, row: PoolingRow, order: tuple[int, int, int]) -> None:
        self.row = row
        self.order = order
        self.is_waiting = True

    def __lt__(self, other: PoolingJob) -> bool:
        return self.order < other.order


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingStatistics:
    """What is held at this moment; equal to a fresh scheduler's when all is done.

    Args:
      num_running: inputs of steps in flight.
      num_waiting: inputs that no step has taken yet.
      num_kept: results that the device keeps, as far as the last step told.
      num_releases: keys that the device has not been told to forget yet.
    """

    num_running: int
    num_waiting: int
    num_kept: int
    num_releases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingCounters:
    """What has happened since the start."""

    num_steps: int
    num_inputs: int
    num_input_tokens: int


class PoolingScheduler:
    """Plans the steps of a pooling model.

    Args:
      max_num_seqs: inputs of one step.
      max_num_batched_tokens: their tokens; a longer input is a step by itself.
    """

    def __init__(self, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._heap: list[PoolingJob] = []
        self._num_waiting = 0
        self._in_flight: dict[int, list[PoolingJob]] = {}
        self._releases: list[KeptKey] = []
        self._num_kept = 0
        self._turn = 0
        self._numbers = itertools.count()
        self._step_ids = itertools.count()
        self._num_inputs = 0
        self._num_input_tokens = 0
        self._num_steps = 0

    def add(self, row: PoolingRow, flow: PoolingFlow) -> PoolingJob:
        """Let an input wait for its turn.

        What a flow keeps has its turn before what it adds later, so that a row may be
        compared with it.
        """
        turn = max(self._turn, flow.next_turn)
        flow.next_turn = turn + row.input.num_tokens
        job = PoolingJob(row, (flow.priority, turn, next(self._numbers)))
        heapq.heappush(self._heap, job)
        self._num_waiting += 1
        return job

    def abort(self, jobs: Iterable[PoolingJob]) -> None:
        """Give inputs up; those of a step in flight end with it."""
        for job in jobs:
            if job.is_waiting:
                job.is_waiting = False
                self._num_waiting -= 1
        # Given up ones stay in the heap, unseen, until they are the majority: so the
        # cost of rebuilding it is spread over as many of them.
        if len(self._heap) > 64 and len(self._heap) > 2 * self._num_waiting:
            self._heap = [job for job in self._heap if job.is_waiting]
            heapq.heapify(self._heap)

    def release(self, key: KeptKey) -> None:
        """Let the next step forget what is kept under a key, if it ever was."""
        self._releases.append(key)

    def schedule(self) -> PoolingPlan | None:
        """Plan a step, or return None where nobody waits."""
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
        self, plan: PoolingPlan, result: PoolingResult
    ) -> Iterable[tuple[PoolingJob, TensorBytes]]:
        """Take a step's result; returns what each of its inputs gave."""
        jobs = self._in_flight.pop(plan.step_id)
        self._num_kept = result.num_kept
        self._num_steps += 1
        self._num_inputs += len(jobs)
        self._num_input_tokens += plan.num_tokens
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
        )

    def _take_jobs(self) -> list[PoolingJob]:
        jobs: list[PoolingJob] = []
        budget = self._max_num_batched_tokens
        while self._heap and len(jobs) < self._max_num_seqs:
            job = self._heap[0]
            if job.is_waiting:
                budget -= job.row.input.num_tokens
                if budget < 0 and jobs:
                    break
                job.is_waiting = False
                self._num_waiting -= 1
                self._turn = max(self._turn, job.order[1])
                jobs.append(job)
            heapq.heappop(self._heap)
        return jobs
