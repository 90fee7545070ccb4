"""The engine that generates: requests on one side, the loop of steps on the other.

    open_stream --> scheduler --> plan --> executor --> result --> scheduler --> stream

The loop itself is loop.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
import itertools
import secrets

import trio

from .. import scheduler as scheduling
from ..errors import InvalidParameter, QueueFull
from ..executor import Executor
from ..scheduler import Scheduler, SchedulerCounters, SchedulerStatistics
from ..steps import (
    ModelInfo,
    Prompt,
    SamplingParams,
    SequenceId,
    SequenceOutput,
    StepPlan,
    StepResult,
)
from .admission import check_request, resolve_sampling
from .delivery import TokenStream
from .loop import StepLoop

# Tokens of a request from which on its prompts are hashed in a thread: on the loop they
# would take a third of a millisecond.
_LONG_PROMPT = 4096


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
        executor: Executor[StepPlan, StepResult],
        *,
        info: ModelInfo,
        max_num_sequences: int,
    ) -> None:
        self.info = info
        self._scheduler = scheduler
        self._max_num_sequences = max_num_sequences
        self._preparing = trio.CapacityLimiter(1)
        self._numbers = itertools.count()
        self._owners: dict[SequenceId, tuple[TokenStream, int]] = {}
        self._loop = StepLoop(executor, scheduler, self._deliver)

    @property
    def is_alive(self) -> bool:
        return self._loop.is_alive

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            num_streams=self._loop.num_requests, scheduler=self._scheduler.statistics()
        )

    def counters(self) -> SchedulerCounters:
        return self._scheduler.counters()

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Step until cancelled; see StepLoop."""
        await self._loop.run(task_status)

    def close_requests(self, error: Exception) -> None:
        """Raise `error` in every open stream and in whoever would open one.

        What a stream has gathered is read first. Only the first call counts.
        """
        self._loop.close(error)

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
        self._loop.check_alive()
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
            self._loop.check_alive()
            self._check_room(num_new)
        stream = TokenStream(
            len(sequences), lambda index: self._abort(sequences[index : index + 1])
        )
        with self._loop.hold(stream):
            try:
                self._admit(sequences, stream)
                yield stream
            finally:
                self._abort(sequences)

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
        self._loop.wake()

    def _abort(self, sequences: Iterable[scheduling.Sequence]) -> None:
        for sequence in sequences:
            if self._owners.pop(sequence.sequence_id, None) is not None:
                self._scheduler.abort(sequence.sequence_id)
                # An idle device may have to be told to forget it.
                self._loop.wake()

    # The loop.

    def _deliver(self, outputs: list[SequenceOutput]) -> None:
        for output in outputs:
            stream, index = self._owners[output.sequence_id]
            stream.push_nowait(index, output)
            if output.finish_reason is not None:
                del self._owners[output.sequence_id]
