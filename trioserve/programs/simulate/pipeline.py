"""An executor whose stages take virtual seconds and really transfer messages.

    submit --> inbox of every stage
                 stage 0 -- link --> stage 1 -- link --> ... stage N - 1 --> result
                    ^                                          |
                    +------------------ tokens ----------------+

Each stage is a task. It takes plans in order, waits for its messages, computes (sleeps),
and sends. It compares each message with the one that it expects. A mistake would be a
deadlock in a real pipeline; here it ends the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
import math
from typing import Protocol

import outcome
import trio

from ...executor.protocol import Handle
from ...types.output import StepResult
from ...types.plan import StepPlan
from ...types.transfers import AwaitedTokens, Transfer, list_transfers
from .record import Bar, Message, PlanReader, Record, StepKind


class TransfersNotMatched(Exception):
    """Raised when a stage receives another message than it expects."""

    def __init__(self, expected: Transfer, received: Transfer) -> None:
        super().__init__(f"expected {expected}, received {received}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """The times of a simulation, in seconds; see SimulateConfig.

    Args:
      stage_weights: one for each stage, or none if all are alike.
    """

    step_seconds: float = 0.016
    token_seconds: float = 0.0
    stage_weights: tuple[float, ...] = ()
    link_seconds: float = 0.0
    return_seconds: float = 0.0
    host_seconds: float = 0.0

    def list_shares(self, num_stages: int) -> list[float]:
        """Return each stage's part of the whole model's time."""
        weights = self.stage_weights or (1.0,) * num_stages
        if len(weights) != num_stages:
            raise ValueError("there is one weight for each stage")
        return [weight / sum(weights) for weight in weights]

    def seconds_of(self, plan: StepPlan) -> float:
        """Return the time that the whole model takes for a plan."""
        if not plan.rows:
            return 0.0
        return self.step_seconds + self.token_seconds * plan.num_tokens


class PlannedTransfers(Protocol):
    """The messages between stages, as every stage reads them from the plans."""

    def list(self, plan: StepPlan) -> tuple[Transfer, ...]: ...

    def take(self, plan: StepPlan) -> Iterator[Transfer]:
        """Yield the transfers of tokens that the first stage needs before it runs a plan."""


class _NeededTransfers:
    """Tokens go back after steps that sample; the first stage waits when it needs them."""

    def __init__(self, num_stages: int, depth: int) -> None:
        self._num_stages = num_stages
        self._awaited = AwaitedTokens(depth)

    def list(self, plan: StepPlan) -> tuple[Transfer, ...]:
        return list_transfers(plan, self._num_stages)

    def take(self, plan: StepPlan) -> Iterator[Transfer]:
        if self._num_stages > 1:
            for arrival in self._awaited.take(plan):
                num_rows = len(arrival.slots)
                yield _answer(arrival.step_id, self._num_stages, num_rows)


class EveryStepTransfers:
    """Tokens go back after every step, and the first stage waits for the last answer.

    Pipelines do this if they do not read the plan.
    """

    def __init__(self, num_stages: int) -> None:
        self._num_stages = num_stages
        self._last: Transfer | None = None

    def list(self, plan: StepPlan) -> tuple[Transfer, ...]:
        hidden = list_transfers(plan, self._num_stages)[: self._num_stages - 1]
        return (*hidden, self._answer(plan)) if hidden else ()

    def take(self, plan: StepPlan) -> Iterator[Transfer]:
        if self._last is not None:
            yield self._last
        is_answered = self._num_stages > 1 and plan.rows
        self._last = self._answer(plan) if is_answered else None

    def _answer(self, plan: StepPlan) -> Transfer:
        return _answer(plan.step_id, self._num_stages, plan.num_sampled)


def _answer(step_id: int, num_stages: int, num_rows: int) -> Transfer:
    return Transfer(
        step_id=step_id,
        what="sampled",
        sender=num_stages - 1,
        receiver=0,
        num_rows=num_rows,
    )


class _Link:
    """A connection in one direction; messages arrive in order, after a delay."""

    def __init__(self, seconds: float, record: Record) -> None:
        self._seconds = seconds
        self._record = record
        # Bounded by the engine loop, which limits the steps in flight.
        self._send, self._receive = trio.open_memory_channel[tuple[Transfer, float]](
            math.inf
        )

    def send(self, transfer: Transfer) -> None:
        self._record.sent.append(transfer)
        self._send.send_nowait((transfer, trio.current_time()))

    async def receive(self, expected: Transfer) -> None:
        transfer, sent_at = await self._receive.receive()
        if transfer != expected:
            raise TransfersNotMatched(expected, transfer)
        await trio.sleep_until(sent_at + self._seconds)
        self._record.messages.append(
            Message(transfer=transfer, sent_at=sent_at, taken_at=trio.current_time())
        )


@dataclass(slots=True, kw_only=True)
class _Submitted:
    """A plan on its way through the stages."""

    plan: StepPlan
    handle: Handle[StepResult]
    ready_at: float
    kind: StepKind
    chunks: tuple[tuple[int, int], ...]


class PipelineSimulator:
    """An Executor of N stages in virtual time.

    Args:
      step: returns the result of a plan, such as FakeDevice.step.
      depth: largest number of steps in flight; N + 1 by default.
      transfers: the messages between stages; by default a real pipeline's.

    Attributes:
      record: all steps and messages so far.
    """

    def __init__(
        self,
        step: Callable[[StepPlan], StepResult],
        *,
        num_stages: int,
        times: PipelineTimes,
        depth: int | None = None,
        transfers: PlannedTransfers | None = None,
    ) -> None:
        self.depth = num_stages + 1 if depth is None else depth
        self.max_depth = self.depth
        self.record = Record()
        self._step = step
        self._num_stages = num_stages
        self._times = times
        self._shares = times.list_shares(num_stages)
        self._transfers = transfers or _NeededTransfers(num_stages, self.depth)
        self._links = {
            (stage, stage + 1): _Link(times.link_seconds, self.record)
            for stage in range(num_stages - 1)
        }
        self._links[num_stages - 1, 0] = _Link(times.return_seconds, self.record)
        self._inboxes = [
            trio.open_memory_channel[_Submitted](math.inf) for _ in range(num_stages)
        ]
        self._reader = PlanReader()
        self._host_free_at = 0.0

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with trio.open_nursery() as nursery:
            for stage in range(self._num_stages):
                nursery.start_soon(self._run_stage, stage)
            task_status.started()

    def submit(self, plan: StepPlan, notify: Callable[[], None]) -> Handle[StepResult]:
        begin = max(trio.current_time(), self._host_free_at)
        self._host_free_at = begin + self._times.host_seconds
        kind, chunks = self._reader.read(plan)
        self.record.num_steps += bool(plan.rows)
        submitted = _Submitted(
            plan=plan,
            handle=Handle[StepResult](notify),
            ready_at=self._host_free_at,
            kind=kind,
            chunks=chunks,
        )
        for inbox, _ in self._inboxes:
            inbox.send_nowait(submitted)
        return submitted.handle

    async def _run_stage(self, stage: int) -> None:
        async for submitted in self._inboxes[stage][1]:
            plan = submitted.plan
            await trio.sleep_until(submitted.ready_at)
            transfers = self._transfers.list(plan)
            for transfer in self._list_expected(stage, plan, transfers):
                await self._links[transfer.sender, stage].receive(transfer)
            if plan.rows:
                await self._compute(stage, submitted)
            for transfer in transfers:
                if transfer.sender == stage:
                    self._links[stage, transfer.receiver].send(transfer)
            if stage == self._num_stages - 1:
                submitted.handle.set(outcome.capture(self._step, plan))

    def _list_expected(
        self, stage: int, plan: StepPlan, transfers: tuple[Transfer, ...]
    ) -> Iterator[Transfer]:
        if stage == 0:
            return self._transfers.take(plan)
        return (transfer for transfer in transfers if transfer.receiver == stage)

    async def _compute(self, stage: int, submitted: _Submitted) -> None:
        begin = trio.current_time()
        plan = submitted.plan
        # sleep_until, because the rounding of sleep would add up over a million steps.
        end = begin + self._shares[stage] * self._times.seconds_of(plan)
        await trio.sleep_until(end)
        self.record.bars.append(
            Bar(
                stage=stage,
                step_id=plan.step_id,
                kind=submitted.kind,
                begin=begin,
                end=end,
                num_tokens=plan.num_tokens,
                chunks=submitted.chunks,
            )
        )
