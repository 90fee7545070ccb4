"""The renderer workers: threads under one limiter, with a time limit for some calls.

A thread cannot be stopped. A call that exceeds its time limit is *abandoned*: its task
goes on with an error, its worker takes the next call, and its thread counts until it
ends. If too many threads are abandoned, further calls with a time limit are refused.
Otherwise clients could fill the process with threads that compete for the GIL.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
import logging
import math
from typing import Any, Generic, Protocol, TypeVar, cast

import trio

from ...errors import RendererStuck
from ...observe import Owned
from .turns import RenderTurns, Workplace

T = TypeVar("T")

logger = logging.getLogger(__name__)

# A worker tokenizes about so many characters in a second: a megabyte of digits takes
# 1.2 seconds, of English 0.5, of spaces 0.5 (SmolLM2's tokenizer, on one of two cores).
CHARACTERS_PER_SECOND = 1e6

# The texts of one request are divided into jobs: each is one call. A job of this size
# takes 15 ms: much longer than the switch to a thread, and short enough that other
# requests do not wait long for the worker.
_JOB_TEXTS = 32
_JOB_CHARACTERS = 65536

# Assumed for a text of unknown length, so that a job takes _JOB_TEXTS of them.
UNKNOWN_SIZE = _JOB_CHARACTERS // _JOB_TEXTS

# Two for each worker are enough for a few unlucky requests, and are still few threads.
_ABANDONED_PER_WORKER = 2


def cut_jobs(sizes: Sequence[int]) -> list[range]:
    """Divide texts into jobs of a bounded number of texts and characters.

    A long text is a job of its own.

    Args:
      sizes: characters of each text.
    """
    jobs: list[range] = []
    begin = num_characters = 0
    for index, size in enumerate(sizes):
        is_full = index - begin == _JOB_TEXTS
        if index > begin and (is_full or num_characters + size > _JOB_CHARACTERS):
            jobs.append(range(begin, index))
            begin, num_characters = index, 0
        num_characters += size
    if sizes:
        jobs.append(range(begin, len(sizes)))
    return jobs


@asynccontextmanager
async def hold_token(limiter: trio.CapacityLimiter) -> AsyncIterator[None]:
    """Hold one of a limiter's tokens in the block, without a task as its borrower.

    `async with limiter` borrows on behalf of the task, which may have only one token at
    a time. Some tasks need several.
    """
    holder = Owned()
    await limiter.acquire_on_behalf_of(holder)
    try:
        yield
    finally:
        limiter.release_on_behalf_of(holder)


class RunInThread(Protocol):
    """The part of trio.to_thread.run_sync that the workers use."""

    def __call__(
        self,
        work: Callable[[], T],
        /,
        *,
        limiter: trio.CapacityLimiter,
        abandon_on_cancel: bool = False,
    ) -> Awaitable[T]: ...


# mypy does not see that "*args" may be none.
_TRIO = cast(RunInThread, trio.to_thread.run_sync)


class TookTooLong(Exception):
    """Raised when a call exceeds its time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RendererStatistics:
    """The load of the renderer workers.

    Args:
      workers: threads that may work at once.
      busy: threads that work.
      waiting: calls that wait for a thread.
      abandoned: threads that still run a call whose task has gone on without it.
    """

    workers: int
    busy: int
    waiting: int
    abandoned: int


class RendererWorkers:
    """Runs blocking calls in a bounded number of threads, short calls first (turns.py).

    A call that is cancelled while it waits for a worker never runs. After its start a
    cancelled task waits for its end.

    Args:
      num_workers: the calls that may run at once.
      run_in_thread: runs a call while the event loop goes on.

    Attributes:
      limiter: has a token for each worker; only this class takes them.
    """

    def __init__(self, num_workers: int, run_in_thread: RunInThread = _TRIO) -> None:
        self.limiter = trio.CapacityLimiter(num_workers)
        self._run_in_thread = run_in_thread
        self._turns = RenderTurns(self.limiter)
        # Unlimited, because a call already has a token of `limiter`. If trio took that
        # token for the thread, an abandoned thread would keep it.
        self._threads = trio.CapacityLimiter(math.inf)
        self._abandoned: list[_Call[Any]] = []

    @property
    def is_stuck(self) -> bool:
        """True if calls with a time limit are refused: too many are abandoned."""
        limit = _ABANDONED_PER_WORKER * self.limiter.total_tokens
        return bool(self._abandoned) and len(self.list_abandoned()) >= limit

    def describe_place(self, name: str) -> Workplace:
        """Describe the threads to people, by the name of one."""
        return Workplace(
            name=name, limiter=self.limiter, list_waiting=self._turns.list_waiting
        )

    def resize(self, num_workers: int) -> None:
        """Change the number of threads that may work at once."""
        self._turns.resize(num_workers)

    async def run(self, work: Callable[[], T], *, expected_seconds: float = 0.0) -> T:
        """Run a call whose time is bounded by the size of its input.

        Args:
          expected_seconds: its expected time, which decides when its turn comes.
        """
        async with self._turns.hold(expected_seconds):
            return await self._run_in_thread(work, limiter=self._threads)

    async def run_limited(
        self, work: Callable[[], T], seconds: float, *, expected_seconds: float = 0.0
    ) -> T:
        """Run a call that may never end.

        Args:
          seconds: its time limit, without the time that it waits for a worker.
          expected_seconds: as for run.

        Raises:
          TookTooLong: it exceeded its time limit and was abandoned.
          RendererStuck: too many abandoned calls still run.
        """
        call = _Call(work)
        async with self._turns.hold(expected_seconds):
            if self.is_stuck:
                raise RendererStuck()
            # Shielded, so that a client that leaves does not abandon a healthy thread.
            with trio.move_on_after(seconds, shield=True):
                return await self._run_in_thread(
                    call.run, limiter=self._threads, abandon_on_cancel=True
                )
        self._abandoned.append(call)
        logger.warning(
            "a rendering call was abandoned after %g s; %d abandoned threads still run",
            seconds,
            len(self.list_abandoned()),
        )
        raise TookTooLong()

    def statistics(self) -> RendererStatistics:
        state = self.limiter.statistics()
        return RendererStatistics(
            workers=int(state.total_tokens),
            busy=state.borrowed_tokens,
            waiting=self._turns.num_waiting,
            abandoned=len(self.list_abandoned()),
        )

    def list_abandoned(self) -> Sequence[Owned]:
        """Return the calls whose tasks have gone on without them, and which still run."""
        self._abandoned = [call for call in self._abandoned if not call.has_ended]
        return self._abandoned


class _Call(Owned, Generic[T]):
    """A call with a time limit, which records its end."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__()
        self._work = work
        # Set in the thread, read in the loop.
        self.has_ended = False

    def run(self) -> T:
        try:
            return self._work()
        finally:
            self.has_ended = True
