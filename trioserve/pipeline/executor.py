"""A model spread over processes, each with some of its layers.

    submit --plan--> every stage          over a connection of each
                     stage 0 -> 1 -> ...  hidden states and tokens, among themselves
           <--result-- the last stage

All stages get all plans, in one order; what they exchange follows from that alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import outcome
import trio

from ..executor.handle import Handle
from ..processes import MessageStream, PeerGone, pack
from ..types.output import StepResult
from ..types.plan import StepPlan
from .messages import Beat, Step, Stepped

# A stage that is there beats every second, whatever it computes.
_MAX_SILENCE_SECONDS = 5.0
_WATCH_SECONDS = 1.0


class StageDied(Exception):
    """Raised when a stage has ended, hangs, or cannot be heard any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePeer:
    """A stage, as who drives it sees it.

    Args:
      name: for people, as "stage 1".
      stream: to its process.
      describe_end: tells how the process ended, once it has hung up.
    """

    name: str
    stream: MessageStream[Any]
    describe_end: Callable[[], Awaitable[str]]

    async def send(self, message: object) -> None:
        """Send a message now, before the executor runs.

        Raises:
          StageDied
        """
        try:
            await self.stream.send(message)
        except PeerGone:
            raise StageDied(await self.describe_end()) from None

    async def receive(self) -> Any:
        """Wait for the next message.

        Raises:
          StageDied
        """
        try:
            return await self.stream.receive()
        except PeerGone:
            raise StageDied(await self.describe_end()) from None


class PipelineExecutor:
    """The Executor of a pipeline.

    Args:
      stages: ready, in their order.
      depth: steps in flight at most; one for each stage keeps all of them busy, and one
        more lies ready when the first stage is done.
      step_timeout: seconds after which a step that has not ended is given up.
    """

    def __init__(
        self, stages: Sequence[StagePeer], *, depth: int, step_timeout: float
    ) -> None:
        self.depth = depth
        self._stages = stages
        self._step_timeout = step_timeout
        self._in_flight: deque[Handle[StepResult]] = deque()
        # Since when the oldest of them may have been at the last stage.
        self._waiting_since = 0.0
        self._heard_at: dict[str, float] = {}

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Hand plans on until cancelled.

        Raises:
          StageDied
        """
        async with trio.open_nursery() as nursery:
            for stage in self._stages:
                self._heard_at[stage.name] = trio.current_time()
                nursery.start_soon(stage.stream.run)
                nursery.start_soon(self._listen, stage)
            nursery.start_soon(self._watch)
            task_status.started()

    def submit(self, plan: StepPlan, notify: Callable[[], None]) -> Handle[StepResult]:
        if not self._in_flight:
            self._waiting_since = trio.current_time()
        handle = Handle[StepResult](notify)
        self._in_flight.append(handle)
        message = Step(plan=plan)
        # Once for all of them, or once for all who share no memory with us.
        packed = {
            shares: pack(message, shares_memory=shares)
            for shares in {stage.stream.shares_memory for stage in self._stages}
        }
        for stage in self._stages:
            stage.stream.post_nowait(packed[stage.stream.shares_memory].copy())
        for each in packed.values():
            each.close()
        return handle

    async def _listen(self, stage: StagePeer) -> None:
        while True:
            message = await stage.receive()
            self._heard_at[stage.name] = trio.current_time()
            match message:
                case Stepped(result=result):
                    self._waiting_since = trio.current_time()
                    self._in_flight.popleft().set(outcome.Value(result))
                case Beat():
                    pass
                case _:
                    raise AssertionError(f"{stage.name} says {message}")

    async def _watch(self) -> None:
        while True:
            began = trio.current_time()
            await trio.sleep(_WATCH_SECONDS)
            now = trio.current_time()
            # Then it was us who did not listen, stopped or at something else, and what
            # they said has yet to be read.
            if now - began > 2 * _WATCH_SECONDS:
                continue
            for name, heard_at in self._heard_at.items():
                if now - heard_at > _MAX_SILENCE_SECONDS:
                    raise StageDied(f"{name} has not been heard of for a while")
            if self._in_flight and now - self._waiting_since > self._step_timeout:
                raise StageDied(f"a step has taken more than {self._step_timeout:g} s")
