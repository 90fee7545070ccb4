"""The executor of a model that is spread over processes.

    submit --plan--> every stage          each stage has its own connection
                     stage 0 -> 1 -> ...  hidden states and tokens, between the stages
           <--result-- the last stage

All stages get all plans in the same order, and derive from the plans alone which messages
to exchange.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import outcome
import trio

from ...processes import Alive, MessageStream, PeerGone, pack
from ...processes.silence import SilenceWatch
from ...types.adapter import AdapterFacts, AdapterSource
from ...types.output import StepResult
from ...types.plan import StepPlan
from ..protocol import Handle
from .adapter_answers import AdapterAnswers
from .messages import (
    AdapterLoaded,
    AdapterNotLoaded,
    DropAdapter,
    LoadAdapter,
    Step,
    Stepped,
)

# A stage that is alive sends Alive every second, even while it computes.
_MAX_SILENCE_SECONDS = 5
_WATCH_SECONDS = 1.0


class StageDied(Exception):
    """Raised when a stage has ended, hangs or is silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePeer:
    """The connection to a stage.

    Args:
      name: for messages, such as "stage 1".
      stream: the connection to its process.
      describe_end: describes the end of the process after it has closed the connection.
    """

    name: str
    stream: MessageStream[Any]
    describe_end: Callable[[], Awaitable[str]]

    async def send(self, message: object) -> None:
        """Send a message; only before the executor runs.

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

    async def refuse_silence(self) -> None:
        """Raise StageDied, because nothing has come for too long."""
        await trio.lowlevel.checkpoint()
        raise StageDied(f"{self.name} has been silent for {_MAX_SILENCE_SECONDS} s")


class PipelineExecutor:
    """The Executor of a pipeline.

    Args:
      stages: the stages, ready for plans, in their order.
      depth: largest number of steps in flight. One for each stage keeps all of them busy;
        one more is ready when the first stage has finished a step.
      step_timeout: seconds that a step may take.
    """

    def __init__(
        self, stages: Sequence[StagePeer], *, depth: int, step_timeout: float
    ) -> None:
        self.depth = self.max_depth = depth
        self._stages = stages
        self._step_timeout = step_timeout
        self._in_flight: deque[Handle[StepResult]] = deque()
        # The answers about adapters that are being loaded, by number.
        self._adapters: dict[int, AdapterAnswers] = {}
        # The time since which the last stage may have worked on the oldest step.
        self._waiting_since = 0.0

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Send plans and receive results until cancelled.

        Raises:
          StageDied
        """
        async with trio.open_nursery() as nursery:
            for stage in self._stages:
                watch = SilenceWatch(stage.refuse_silence, limit=_MAX_SILENCE_SECONDS)
                watch.begin()
                nursery.start_soon(stage.stream.run)
                nursery.start_soon(self._listen, stage, watch)
                nursery.start_soon(watch.run)
            nursery.start_soon(self._limit_step)
            task_status.started()

    def submit(self, plan: StepPlan, notify: Callable[[], None]) -> Handle[StepResult]:
        if not self._in_flight:
            self._waiting_since = trio.current_time()
        handle = Handle[StepResult](notify)
        self._in_flight.append(handle)
        self._post(Step(plan=plan))
        return handle

    def _post(self, message: object) -> None:
        """Send a message to all processes."""
        # Pack once for all stages that share memory with us, and once for the others.
        packed = {
            shares: pack(message, shares_memory=shares)
            for shares in {stage.stream.shares_memory for stage in self._stages}
        }
        for stage in self._stages:
            stage.stream.post_nowait(packed[stage.stream.shares_memory].copy())
        for each in packed.values():
            each.close()

    async def load_adapter(self, source: AdapterSource) -> AdapterFacts:
        answers = self._adapters[source.number] = AdapterAnswers(len(self._stages))
        self._post(LoadAdapter(source=source))
        try:
            await answers.wait_complete()
            return answers.join(source.name)
        except BaseException:
            # A process that still reads it drops it afterwards.
            self.drop_adapter(source.number)
            raise
        finally:
            del self._adapters[source.number]

    def drop_adapter(self, number: int) -> None:
        self._post(DropAdapter(number=number))

    async def _listen(self, stage: StagePeer, watch: SilenceWatch) -> None:
        while True:
            message = await stage.receive()
            watch.note_message()
            match message:
                case Stepped(result=result):
                    self._waiting_since = trio.current_time()
                    self._in_flight.popleft().set(outcome.Value(result))
                case AdapterLoaded(facts=facts):
                    self._note_adapter(facts.number, facts)
                case AdapterNotLoaded(number=number, reason=reason):
                    self._note_adapter(number, reason)
                case Alive():
                    pass
                case _:
                    raise AssertionError(f"{stage.name} sent {message}")

    def _note_adapter(self, number: int, answer: AdapterFacts | str) -> None:
        # Nobody waits for an adapter whose loading was cancelled.
        if number in self._adapters:
            self._adapters[number].add(answer)

    async def _limit_step(self) -> None:
        while True:
            began = trio.current_time()
            await trio.sleep(_WATCH_SECONDS)
            now = trio.current_time()
            # This process did not run for a while. A result that came in this time has
            # not been read yet.
            if now - began > 2 * _WATCH_SECONDS:
                continue
            if self._in_flight and now - self._waiting_since > self._step_timeout:
                raise StageDied(f"a step has taken more than {self._step_timeout:g} s")
