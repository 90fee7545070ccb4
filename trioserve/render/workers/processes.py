"""Processes that run chat templates: the one kind of rendering that holds the GIL.

A template is pure Python. In a thread it takes turns with the event loop, which makes
every turn late and lets no two templates run at once; and a thread cannot be stopped,
nor its memory be bounded. In a process it costs half a millisecond more, a template that
does not end is ended, and one that wants gigabytes does not get them.
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
from ..text.template import TemplateCall
from .threads import TookTooLong
from .turns import Turns

logger = logging.getLogger(__name__)

# A template is interrupted between two instructions of Python. One that is inside of a
# single long one, such as 'a' * 10**9, is killed with its process so much later.
_KILL_SECONDS = 2.0

# What a template may allocate beyond what a process has from the start. The longest
# bodies that the server takes are a tenth of it.
_MEMORY_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatistics:
    """How busy the processes are.

    Args:
      processes: templates that may run at once.
      busy: those that do.
      waiting: templates that wait for one.
    """

    processes: int
    busy: int
    waiting: int


class TemplateProcesses:
    """Runs templates in up to so many processes, short conversations first.

    Attributes:
      limiter: a token for each process.
      num_killed: processes that had to be killed, each replaced by the next call.
    """

    def __init__(
        self, context: trio_parallel.WorkerContext, num_processes: int
    ) -> None:
        self._context = context
        self.limiter = trio.CapacityLimiter(num_processes)
        self._turns = Turns(self.limiter)
        self.num_killed = 0

    async def render(
        self, call: TemplateCall, seconds: float, *, expected_seconds: float = 0.0
    ) -> str:
        """Run one template.

        Args:
          seconds: counted from when a process begins it; waiting for one is free.
          expected_seconds: what it may take, for its place among those that wait.

        Raises:
          TookTooLong: it was ended.
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
                # One that never waits: whoever comes here has a place.
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
    """Start the processes and keep them until the block is left; None for no process.

    They are warm when the block begins: no client waits for a second of imports.
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


_HELLO = TemplateCall(
    source="",
    messages=[],
    tools=None,
    add_generation_prompt=False,
    continue_final_message=False,
    variables={},
)


# In the process.


def _bound_memory() -> None:
    # The library that renders is loaded first: its own memory is not the template's.
    _HELLO.render()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _render_limited(call: TemplateCall, seconds: float) -> str:
    """Run a template under an alarm clock.

    Raises:
      TookTooLong
    """
    signal.signal(signal.SIGALRM, _raise_too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return call.render()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _raise_too_long(signum: int, frame: FrameType | None) -> None:
    raise TookTooLong()
