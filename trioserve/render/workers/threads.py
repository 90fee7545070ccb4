"""The renderer workers: threads under one limiter, with a clock on what cannot end.

A thread cannot be stopped. A call that runs longer than it may is *abandoned*: its task
goes on with an error, its worker's place goes to the next call, and its thread is
counted until it ends. Where too many are under way, no further call that might end so is
begun, or clients could fill the process with threads that compete for the GIL.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
import logging
import math
from typing import Any, Generic, TypeVar

import trio

from ...errors import InvalidParameter, RendererStuck
from .turns import Turns

T = TypeVar("T")

logger = logging.getLogger(__name__)

# Characters of which a worker makes tokens in a second: a megabyte of digits takes 1.2
# seconds, of English 0.5, of spaces 0.5 (SmolLM2's tokenizer, on one of two cores).
_CHARACTERS_PER_SECOND = 1e6

# Two for each worker: enough for a few unlucky requests, and with the workers
# themselves still few threads.
_ABANDONED_PER_WORKER = 2


def expect_seconds(num_characters: int) -> float:
    """Return what a text's rendering takes at most, about."""
    return num_characters / _CHARACTERS_PER_SECOND


@asynccontextmanager
async def hold_token(limiter: trio.CapacityLimiter) -> AsyncIterator[None]:
    """Hold one of a limiter's tokens in the block, on nobody's behalf.

    `async with limiter` gives one to the task, which may have only one at a time and
    may want to do several such things side by side.
    """
    holder = object()
    await limiter.acquire_on_behalf_of(holder)
    try:
        yield
    finally:
        limiter.release_on_behalf_of(holder)


class TookTooLong(Exception):
    """Raised in place of an abandoned call's result."""


@contextmanager
def explain_slow_template(seconds: float) -> Iterator[None]:
    """Tell the client why its conversation was given up after so long.

    Raises:
      InvalidParameter
    """
    try:
        yield
    except TookTooLong:
        raise InvalidParameter(
            "messages",
            f"the chat template takes longer than {seconds:g} s for them",
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RendererStatistics:
    """How busy the renderer workers are.

    Args:
      workers: threads that may work at once.
      busy: those that do.
      waiting: calls that wait for one.
      abandoned: threads that still run a call for which nobody waits any more.
    """

    workers: int
    busy: int
    waiting: int
    abandoned: int


class RendererWorkers:
    """Runs blocking calls in a bounded number of threads, short ones first (turns.py).

    A call that is cancelled while it waits for a worker is never made; one that a
    worker has begun is waited for, as long as it may take.

    Attributes:
      limiter: a token for each worker; the workers alone take them.
    """

    def __init__(self, num_workers: int) -> None:
        self.limiter = trio.CapacityLimiter(num_workers)
        self._turns = Turns(self.limiter)
        # Whoever has one of `limiter`'s tokens may have a thread at once; trio's own
        # would keep an abandoned thread's token.
        self._threads = trio.CapacityLimiter(math.inf)
        self._abandoned: list[_Call[Any]] = []

    @property
    def is_stuck(self) -> bool:
        """Whether so many threads are abandoned that limited calls are refused."""
        limit = _ABANDONED_PER_WORKER * self.limiter.total_tokens
        return self._count_abandoned() >= limit

    def resize(self, num_workers: int) -> None:
        """Let so many threads work at once from now on."""
        self._turns.resize(num_workers)

    async def run(self, work: Callable[[], T], *, expected_seconds: float = 0.0) -> T:
        """Make a call whose time is bounded by its input's size.

        Args:
          expected_seconds: what it may take, for its place among those that wait.
        """
        async with self._turns.hold(expected_seconds):
            return await trio.to_thread.run_sync(work, limiter=self._threads)

    async def run_limited(
        self, work: Callable[[], T], seconds: float, *, expected_seconds: float = 0.0
    ) -> T:
        """Make a call that may never end.

        Args:
          seconds: counted from when a worker begins it; waiting for one is free.
          expected_seconds: as of run.

        Raises:
          TookTooLong: it was abandoned.
          RendererStuck: too many calls were, and their threads still run.
        """
        call = _Call(work)
        async with self._turns.hold(expected_seconds):
            if self.is_stuck:
                raise RendererStuck()
            # Shielded: a client that leaves does not turn a healthy thread into an
            # abandoned one.
            with trio.move_on_after(seconds, shield=True):
                return await trio.to_thread.run_sync(
                    call.run, limiter=self._threads, abandon_on_cancel=True
                )
        self._abandoned.append(call)
        logger.warning(
            "a render was abandoned after %g s; %d such threads run",
            seconds,
            self._count_abandoned(),
        )
        raise TookTooLong()

    def statistics(self) -> RendererStatistics:
        state = self.limiter.statistics()
        return RendererStatistics(
            workers=int(state.total_tokens),
            busy=state.borrowed_tokens,
            waiting=self._turns.num_waiting,
            abandoned=self._count_abandoned(),
        )

    def _count_abandoned(self) -> int:
        self._abandoned = [call for call in self._abandoned if not call.has_ended]
        return len(self._abandoned)


class _Call(Generic[T]):
    """One limited call, which knows whether its thread is through with it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        # Set in the thread, read in the loop.
        self.has_ended = False

    def run(self) -> T:
        try:
            return self._work()
        finally:
            self.has_ended = True
