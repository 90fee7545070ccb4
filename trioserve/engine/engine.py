"""The engine: requests on one side, a loop of steps on the other.

    open_stream --> scheduler --> plan --> executor --> result --> scheduler --> stream

All of it runs in one trio thread, so nothing here needs a lock; only the step itself is
in the device's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
import itertools
import logging
import secrets

import trio

from .. import scheduler as scheduling
from ..errors import EngineDied, InvalidParameter, QueueFull, ShuttingDown
from ..executor import Executor, StepHandle
from ..scheduler import Scheduler, SchedulerCounters, SchedulerStatistics
from ..steps import (
    ModelInfo,
    Prompt,
    SamplingParams,
    SequenceId,
    SequenceOutput,
    StepPlan,
)
from .admission import check_request, resolve_sampling
from .delivery import TokenStream

logger = logging.getLogger(__name__)

# Tokens of a request from which on its prompts are hashed in a thread: on the loop they
# would take a third of a millisecond.
_LONG_PROMPT = 4096

# How long a dead engine waits for open requests to tell their clients so.
FAREWELL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """What is held at this moment; equal to a fresh engine's when all is done."""

    num_streams: int
    scheduler: SchedulerStatistics


class Engine:
    """Runs in a nursery, serves any number of streams.

    Args:
      scheduler, executor: what plans steps and what runs them.
      info: bounds every request is checked against.
      max_num_sequences: those that run and wait together; more are refused.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        info: ModelInfo,
        max_num_sequences: int,
    ) -> None:
        self.info = info
        self._scheduler = scheduler
        self._executor = executor
        self._max_num_sequences = max_num_sequences
        self._preparing = trio.CapacityLimiter(1)
        self._numbers = itertools.count()
        self._work = trio.Event()
        self._streams: set[TokenStream] = set()
        self._owners: dict[SequenceId, tuple[TokenStream, int]] = {}
        self._all_closed = trio.Event()
        self._end: Exception | None = None

    @property
    def is_alive(self) -> bool:
        return self._end is None

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            num_streams=len(self._streams), scheduler=self._scheduler.statistics()
        )

    def counters(self) -> SchedulerCounters:
        return self._scheduler.counters()

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Step until cancelled.

        If a step fails, every open stream raises EngineDied, their owners have
        FAREWELL_SECONDS to say so to their clients, and the failure is raised here.
        """
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._executor.run)
                task_status.started()
                await self._step_forever()
        except Exception:
            logger.error("the engine failed", exc_info=True)
            self.close_streams(EngineDied())
            # Shielded, or a cancellation meanwhile would hide the failure.
            with trio.move_on_after(FAREWELL_SECONDS, shield=True):
                await self._wait_no_streams()
            raise
        finally:
            self.close_streams(ShuttingDown())

    @asynccontextmanager
    async def open_stream(
        self, prompts: Sequence[Prompt], sampling: SamplingParams, *, priority: int = 0
    ) -> AsyncIterator[TokenStream]:
        """Generate sampling.n sequences from each prompt, until the block is left.

        Args:
          prompts: sequence k of prompt i has the index i * n + k in the deltas.
          priority: the lower goes first; among equals who came first.

        Raises:
          InvalidParameter, ContextLengthExceeded: see check_request.
          QueueFull: too many sequences wait.
          EngineDied, ShuttingDown: there is no loop any more.
        """
        if self._end is not None:
            raise self._end
        check_request(prompts, sampling, self.info)
        num_new = len(prompts) * sampling.n
        self._check_room(num_new)
        sequences = self._make_sequences(prompts, sampling, priority)
        if sum(len(prompt.token_ids) for prompt in prompts) > _LONG_PROMPT:
            await trio.to_thread.run_sync(
                self._scheduler.prepare,
                sequences,
                limiter=self._preparing,
                abandon_on_cancel=True,
            )
            # Others went on meanwhile.
            if self._end is not None:
                raise self._end
            self._check_room(num_new)
        stream = TokenStream(
            len(sequences), lambda index: self._abort(sequences[index : index + 1])
        )
        self._streams.add(stream)
        try:
            self._admit(sequences, stream)
            yield stream
        finally:
            self._abort(sequences)
            self._streams.remove(stream)
            if not self._streams:
                self._all_closed.set()

    def close_streams(self, error: Exception) -> None:
        """Raise `error` in every open stream and in whoever would open one.

        What a stream has gathered is read first. Only the first call counts.
        """
        if self._end is not None:
            return
        self._end = error
        for stream in self._streams:
            stream.fail(error)

    # Requests.

    def _check_room(self, num_new: int) -> None:
        limit = self._max_num_sequences
        if num_new > limit:
            raise InvalidParameter(
                "n", f"{num_new} sequences were asked for, {limit} are the most"
            )
        statistics = self._scheduler.statistics()
        if statistics.num_running + statistics.num_waiting + num_new > limit:
            raise QueueFull(limit=statistics.num_waiting)

    def _make_sequences(
        self, prompts: Sequence[Prompt], sampling: SamplingParams, priority: int
    ) -> list[scheduling.Sequence]:
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        sequences = []
        for prompt in prompts:
            resolved = resolve_sampling(prompt, sampling, self.info)
            for offset in range(sampling.n):
                number = next(self._numbers)
                sequences.append(
                    scheduling.Sequence(
                        sequence_id=SequenceId(number),
                        prompt_token_ids=prompt.token_ids,
                        sampling=resolved,
                        # Back into int64 where the largest seed wraps round.
                        seed=(seed + offset + 2**63) % 2**64 - 2**63,
                        arrival=number,
                        priority=priority,
                        eos_token_ids=self.info.eos_token_ids,
                        cache_salt=prompt.cache_salt,
                        embedded=prompt.embedded,
                    )
                )
        return sequences

    def _admit(
        self, sequences: Iterable[scheduling.Sequence], stream: TokenStream
    ) -> None:
        for index, sequence in enumerate(sequences):
            self._owners[sequence.sequence_id] = stream, index
            self._scheduler.add(sequence)
        self._work.set()

    def _abort(self, sequences: Iterable[scheduling.Sequence]) -> None:
        for sequence in sequences:
            if self._owners.pop(sequence.sequence_id, None) is not None:
                self._scheduler.abort(sequence.sequence_id)
                # An idle device may have to be told to forget it.
                self._work.set()

    # The loop.

    async def _step_forever(self) -> None:
        in_flight: deque[tuple[StepPlan, StepHandle]] = deque()
        while True:
            self._fill(in_flight)
            if in_flight:
                plan, handle = in_flight.popleft()
                result = await handle.wait()
                self._deliver(self._scheduler.update(plan, result))
            else:
                await self._work.wait()
                self._work = trio.Event()

    def _fill(self, in_flight: deque[tuple[StepPlan, StepHandle]]) -> None:
        while len(in_flight) < self._executor.depth:
            plan = self._scheduler.schedule()
            if plan is None:
                return
            in_flight.append((plan, self._executor.submit(plan)))

    def _deliver(self, outputs: Iterable[SequenceOutput]) -> None:
        for output in outputs:
            stream, index = self._owners[output.sequence_id]
            stream.push_nowait(index, output)
            if output.finish_reason is not None:
                del self._owners[output.sequence_id]

    async def _wait_no_streams(self) -> None:
        while self._streams:
            self._all_closed = trio.Event()
            await self._all_closed.wait()
