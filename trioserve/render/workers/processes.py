"""Processes that run chat templates, the one kind of rendering that holds the GIL.

A template is pure Python. In a thread it alternates with the event loop, which makes
every turn of the loop late, and two templates never run at once. A thread cannot be
stopped either, and its memory has no bound. In a process a template costs half a
millisecond more. But it can be ended, and its memory has a limit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
import logging
from pathlib import Path
import resource
import signal
from types import FrameType

import trio
import trio_parallel

from ...errors import InvalidParameter
from ..text.rendering import TemplateCall
from .threads import TookTooLong
from .turns import RenderTurns, Workplace

logger = logging.getLogger(__name__)

# A template is interrupted between two instructions of Python. If a single instruction,
# such as 'a' * 10**9, takes longer, the process is killed after so much more time.
_KILL_SECONDS = 2.0

# The memory that a template may allocate, besides the process's own. The longest
# request bodies have a tenth of it.
_MEMORY_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatistics:
    """The load of the processes.

    Args:
      processes: templates that may run at once.
      busy: templates that run.
      waiting: templates that wait for a process.
    """

    processes: int
    busy: int
    waiting: int


class TemplateProcesses:
    """Runs templates in a bounded number of processes, short conversations first.

    Attributes:
      limiter: has a token for each process.
      num_killed: processes that had to be killed; the next call replaces each.
    """

    def __init__(
        self, context: trio_parallel.WorkerContext, num_processes: int
    ) -> None:
        self._context = context
        self.limiter = trio.CapacityLimiter(num_processes)
        self._turns = RenderTurns(self.limiter)
        self.num_killed = 0

    def describe_place(self) -> Workplace:
        """Describe the processes to people."""
        return Workplace(
            name="template process",
            limiter=self.limiter,
            list_waiting=self._turns.list_waiting,
        )

    async def render(
        self, call: TemplateCall, seconds: float, *, expected_seconds: float = 0.0
    ) -> str:
        """Run one template.

        Args:
          seconds: its time limit, without the time that it waits for a process.
          expected_seconds: its expected time, which decides when its turn comes.

        Raises:
          TookTooLong: it exceeded its time limit and was ended.
          InvalidParameter: it refuses its messages, or needs too much memory.
        """
        async with self._turns.hold(expected_seconds):
            with trio.move_on_after(seconds + _KILL_SECONDS):
                return await self._run(call, seconds)
        self.num_killed += 1
        logger.warning("a chat template's process was killed after %g s", seconds)
        raise TookTooLong()

    async def _run(self, call: TemplateCall, seconds: float) -> str:
        try:
            text: str = await self._context.run_sync(
                _render_limited,
                call,
                seconds,
                kill_on_cancel=True,
                # A new limiter never waits: self._turns has assigned a place already.
                limiter=trio.CapacityLimiter(1),
            )
        except MemoryError:
            raise InvalidParameter(
                "messages", "the chat template needs too much memory for them"
            ) from None
        return text

    def statistics(self) -> ProcessStatistics:
        state = self.limiter.statistics()
        return ProcessStatistics(
            processes=int(state.total_tokens),
            busy=state.borrowed_tokens,
            waiting=self._turns.num_waiting,
        )


@asynccontextmanager
async def open_template_processes(
    num_processes: int,
) -> AsyncIterator[TemplateProcesses | None]:
    """Run the processes while the block runs; None if their number is 0.

    They have finished their imports when the block begins, so no client waits for that.
    """
    if num_processes == 0:
        yield None
        return
    context = trio_parallel.open_worker_context(
        idle_timeout=float("inf"), init=_bound_memory
    )
    async with context as worker_context:
        processes = TemplateProcesses(worker_context, num_processes)
        async with trio.open_nursery() as nursery:
            for _ in range(num_processes):
                nursery.start_soon(processes.render, _HELLO, 60.0)
        yield processes


_HELLO = TemplateCall(source="", messages=[])


# The rest runs in a process of its own.


def _bound_memory() -> None:
    # Loads the library first, so that its memory does not count as the template's.
    _HELLO.render()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _render_limited(call: TemplateCall, seconds: float) -> str:
    """Run a template with a time limit.

    Raises:
      TookTooLong: it exceeded the limit.
    """
    signal.signal(signal.SIGALRM, _raise_too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return call.render()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _raise_too_long(signum: int, frame: FrameType | None) -> None:
    raise TookTooLong()
