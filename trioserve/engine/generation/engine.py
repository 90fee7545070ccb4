"""The engine that generates: requests on one side, a core that steps on the other.

open_stream --> core --> outputs --> stream
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
import logging
import secrets

import trio

from ...config import SchedulingPolicy
from ...errors import EngineRestarting, InvalidParameter, QueueFull
from ...observe import Pace
from ...scheduler import SchedulerCounters, SchedulerStatistics
from ...types.ids import SequenceId
from ...types.model_info import ModelInfo
from ...types.output import TokenDelta
from ...types.prompt import Prompt
from ...types.sampling import SamplingParams
from ..priority import check_priority
from ..requests import OpenRequests
from .admission import check_request
from .core import GenerationCore, SequenceGroup
from .token_stream import TokenStream

logger = logging.getLogger(__name__)

# So many restarts in so many seconds, and no more: a model takes as long to load as some
# people take to look after it.
_MAX_RESTARTS = 3
_RESTART_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """What is held at this moment; equal to a fresh engine's when all is done."""

    num_streams: int
    scheduler: SchedulerStatistics


class _Restarts:
    """Bounds how often an engine starts again: what always fails, fails."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_MAX_RESTARTS)

    def take(self) -> bool:
        """Count a restart, or refuse it."""
        now = trio.current_time()
        is_full = len(self._times) == _MAX_RESTARTS
        if is_full and now - self._times[0] < _RESTART_SECONDS:
            return False
        self._times.append(now)
        return True


class _OnStarted(trio.TaskStatus[None]):
    """Calls a function in place of telling a nursery."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def started(self, value: None = None) -> None:
        self._call()


class Engine:
    """Runs in a nursery, serves any number of streams.

    Args:
      core: what computes, here or in another process.
      info: bounds every request is checked against.
      max_num_sequences: those that run and wait together; more are refused.
      max_num_running: how many of them run at once.
      scheduling_policy: whether requests may have a priority.
      reopen: what to put in the place of a core that has failed; by default the engine
        fails with it.
    """

    def __init__(
        self,
        core: GenerationCore,
        *,
        info: ModelInfo,
        max_num_sequences: int,
        max_num_running: int = 0,
        scheduling_policy: SchedulingPolicy = "fcfs",
        reopen: Callable[[], Awaitable[GenerationCore]] | None = None,
    ) -> None:
        self.info = info
        self._core = core
        self._reopen = reopen
        self._max_num_sequences = max_num_sequences
        self._max_num_running = max_num_running
        self._scheduling_policy: SchedulingPolicy = scheduling_policy
        self._next_id = 0
        self._streams: dict[SequenceId, TokenStream] = {}
        self._requests = OpenRequests()
        self._pace = Pace()

    @property
    def is_alive(self) -> bool:
        return self._requests.is_alive

    def check_alive(self) -> None:
        """Raise why no request can be opened now, if none can."""
        self._requests.check_alive()

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            num_streams=len(self._requests), scheduler=self._core.statistics()
        )

    def counters(self) -> SchedulerCounters:
        return self._core.counters()

    def stalled_seconds(self) -> float:
        """Return for how long the running step has given nothing; 0 where none runs."""
        return self._core.stalled_seconds()

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Step until cancelled; see OpenRequests.serve."""
        await self._requests.serve(partial(self._run_cores, task_status))

    def close_requests(self, error: Exception) -> None:
        """Raise `error` in every open stream and in whoever would open one.

        What a stream has gathered is read first. Only the first call counts.
        """
        self._requests.close(error)

    def check_room(self, num_sequences: int) -> None:
        """Refuse a request that has no room now, before anything is made for it.

        Raises:
          InvalidParameter: there is never room for so many sequences.
          QueueFull: too many wait.
          EngineDied, ShuttingDown: there is no engine any more.
        """
        self._requests.check_alive()
        self._check_room(num_sequences)

    @asynccontextmanager
    async def open_stream(
        self, prompts: Sequence[Prompt], sampling: SamplingParams, *, priority: int = 0
    ) -> AsyncIterator[TokenStream]:
        """Generate sampling.n sequences from each prompt, until the block is left.

        Args:
          prompts: sequence k of prompt i has the index i * n + k in the deltas.
          priority: requests with a lower number go first; see SchedulerConfig.

        Raises:
          InvalidParameter, ContextLengthExceeded: see check_priority and check_request.
          QueueFull: too many sequences wait.
          EngineDied, ShuttingDown: there is no engine any more.
        """
        self._requests.check_alive()
        check_priority(priority, self._scheduling_policy)
        check_request(prompts, sampling, self.info)
        self._check_room(len(prompts) * sampling.n)
        group = self._make_group(prompts, sampling, priority)
        ids = [SequenceId(number) for number in group.list_ids()]
        stream = TokenStream(
            len(ids), lambda index: self._abort(ids[index : index + 1])
        )
        with self._requests.hold(stream):
            self._streams.update(dict.fromkeys(ids, stream))
            self._note_held()
            try:
                await self._core.add(group)
                # It may have ended while a long prompt was on its way.
                self._requests.check_alive()
                yield stream
            finally:
                self._abort(ids)

    async def _run_cores(self, task_status: trio.TaskStatus[None]) -> None:
        restarts = _Restarts()
        while True:
            try:
                await self._core.run(self._deliver, task_status=task_status)
            except Exception:
                if self._reopen is None or not restarts.take():
                    raise
                logger.error("the engine failed and starts again", exc_info=True)
            self._requests.pause(EngineRestarting())
            self._streams.clear()
            # What is lost was not done.
            self._pace = Pace()
            assert self._reopen is not None, "or the failure was raised"
            self._core = await self._reopen()
            task_status = _OnStarted(self._requests.resume)

    def _check_room(self, num_new: int) -> None:
        most = self._count_places(0)
        if num_new > most:
            raise InvalidParameter(
                "n", f"{num_new} sequences were asked for, {most} are the most"
            )
        if num_new > self._count_places(len(self._streams)):
            raise QueueFull(
                limit=self._core.statistics().num_waiting,
                retry_after_seconds=self._pace.estimate_seconds(
                    trio.current_time(), len(self._streams)
                ),
            )

    def _note_held(self) -> None:
        self._pace.observe(trio.current_time(), len(self._streams))

    def _count_places(self, num_held: int) -> int:
        """Return how many sequences a request may have while others hold so many.

        Half of the places that are free: so requests with many sequences leave room for
        those with one, however many of them come. What can run at once does not wait.

        Source: Choudhury and Hahne 1998 (Dynamic Queue Length Thresholds), with alpha 1.
        """
        num_free = self._max_num_sequences - num_held
        return max(num_free // 2, self._max_num_running - num_held, min(1, num_free))

    def _make_group(
        self, prompts: Sequence[Prompt], sampling: SamplingParams, priority: int
    ) -> SequenceGroup:
        group = SequenceGroup(
            first_id=SequenceId(self._next_id),
            prompts=tuple(prompts),
            sampling=sampling,
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            priority=priority,
        )
        self._next_id += group.num_sequences
        return group

    def _abort(self, sequence_ids: Iterable[SequenceId]) -> None:
        living = [each for each in sequence_ids if self._streams.pop(each, None)]
        if living:
            self._core.abort(living)
            self._note_held()

    def _deliver(self, deltas: Iterable[TokenDelta]) -> None:
        for delta in deltas:
            stream = self._streams.get(delta.sequence_id)
            # A core in another process may not have heard of an abort yet.
            if stream is None:
                continue
            stream.push_nowait(delta)
            if delta.finish_reason is not None:
                del self._streams[delta.sequence_id]
        self._note_held()
