"""An executor whose memory can be given back and taken again.

level 1    the executor stays, without its KV cache
level 2    the executor ends, and with it the model and the stages of a pipeline; later
           another one is opened in its place
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack
import logging
from typing import Generic, TypeVar

import trio

from ..errors import InvalidAdapter, StartupError
from ..processes.interpreter import collect_settled, settle_again
from ..types.adapter import AdapterFacts, AdapterSource
from ..types.sleep import SleepLevel
from .local import LocalExecutor
from .protocol import Executor, StepHandle

logger = logging.getLogger(__name__)

PlanT = TypeVar("PlanT")
ResultT = TypeVar("ResultT")


class RestingExecutor(Generic[PlanT, ResultT]):
    """Runs steps on an executor, and on its successors after each sleep of level 2.

    Args:
      first: the first executor.
      stack: the owner's, with everything that the first one needs and that is closed; the
        same for its successors.
      open: returns a successor with the same numbers of slots, blocks and copies of states.
      trim: gives freed memory back to the system, and returns the bytes that the process
        still holds; blocking.
      telling_shortage: raises a StartupError in place of any error about a lack of memory.
    """

    def __init__(
        self,
        first: Executor[PlanT, ResultT],
        stack: AsyncExitStack,
        open: Callable[[AsyncExitStack], Awaitable[Executor[PlanT, ResultT]]],
        *,
        trim: Callable[[], int],
        telling_shortage: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.depth, self.max_depth = first.depth, first.max_depth
        has_cache = isinstance(first, LocalExecutor) and first.has_cache
        self.levels: tuple[SleepLevel, ...] = (1, 2) if has_cache else (2,)
        self._present: Executor[PlanT, ResultT] | None = first
        self._stack = stack
        self._open = open
        self._trim = trim
        self._telling_shortage = telling_shortage
        self._trimming = trio.CapacityLimiter(1)
        self._level: SleepLevel = 0
        # The loaded adapters, for the next executor, each with the digest of its content.
        self._adapters: dict[int, tuple[AdapterSource, bytes]] = {}
        # Those that the present executor has.
        self._present_adapters: set[int] = set()
        self._num_loading = 0
        self._has_loaded = trio.Event()
        self._must_end = trio.Event()
        self._has_ended = trio.Event()
        self._must_begin = trio.Event()
        self._has_begun = trio.Event()

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        while True:
            await self._run_present(task_status)
            # The next one has no nursery that waits for its start.
            task_status = trio.TASK_STATUS_IGNORED
            self._has_ended.set()
            await self._must_begin.wait()

    async def _run_present(self, task_status: trio.TaskStatus[None]) -> None:
        self._must_end, self._has_ended = trio.Event(), trio.Event()
        self._must_begin = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(self._get_present().run)
            task_status.started()
            self._has_begun.set()
            await self._must_end.wait()
            nursery.cancel_scope.cancel()

    def submit(self, plan: PlanT, notify: Callable[[], None]) -> StepHandle[ResultT]:
        return self._get_present().submit(plan, notify)

    async def load_adapter(self, source: AdapterSource) -> AdapterFacts:
        if self._level:
            await trio.lowlevel.checkpoint()
            raise InvalidAdapter(
                source.name, "the engine is asleep; POST /wake_up first"
            )
        self._num_loading += 1
        try:
            facts = await self._get_present().load_adapter(source)
            self._adapters[source.number] = source, facts.digest
            self._present_adapters.add(source.number)
        finally:
            self._num_loading -= 1
            self._has_loaded.set()
        return facts

    def drop_adapter(self, number: int) -> None:
        del self._adapters[number]
        # While the executor wakes, an adapter may be not loaded yet.
        if number in self._present_adapters:
            self._present_adapters.remove(number)
            self._get_present().drop_adapter(number)

    async def give_back(self, level: SleepLevel) -> int:
        """Give memory back; no step is in flight.

        Returns:
          the bytes that this process still holds
        """
        while self._num_loading:
            self._has_loaded = trio.Event()
            await self._has_loaded.wait()
        # From now on no adapter is loaded.
        self._level = level
        if level == 2:
            await self._end_present()
        else:
            await self._get_local().release_cache()
        # The memory of level 1 is free by now, and collecting all objects takes half a second.
        work = self._collect if level == 2 else self._trim
        return await trio.to_thread.run_sync(work, limiter=self._trimming)

    async def take_again(self) -> tuple[int, ...]:
        """Take all memory again, and load all adapters.

        Returns:
          the numbers of adapters whose files are gone, or have changed

        Raises:
          StartupError: the model cannot be loaded again. All memory is given back, as by level 2.
        """
        lost: tuple[int, ...] = ()
        failure = ""
        try:
            with self._telling_shortage():
                if self._level == 2:
                    lost = await self._begin_next()
                else:
                    await self._get_local().restore_cache()
        except StartupError as error:
            failure = str(error)
        if failure:
            # Behind the clause, because the error's traceback holds tensors.
            await self._give_up()
            raise StartupError(failure)
        self._level = 0
        return lost

    async def _give_up(self) -> None:
        """Give back what was taken before the memory was short."""
        self._level = 2
        if self._present is not None:
            await self._end_present()
        else:
            await self._stack.aclose()
        await trio.to_thread.run_sync(self._collect, limiter=self._trimming)

    async def _end_present(self) -> None:
        self._must_end.set()
        await self._has_ended.wait()
        self._present = None
        self._present_adapters.clear()
        await self._stack.aclose()

    async def _begin_next(self) -> tuple[int, ...]:
        self._present = await self._open(self._stack)
        self._has_begun = trio.Event()
        self._must_begin.set()
        await self._has_begun.wait()
        # Any of them may be dropped meanwhile.
        numbers = [*self._adapters]
        lost = [number for number in numbers if not await self._load_again(number)]
        settle_again()
        return tuple(lost)

    async def _load_again(self, number: int) -> bool:
        """Load an adapter as it was, unless it is dropped; returns whether that was possible."""
        if number not in self._adapters:
            return True
        source, digest = self._adapters[number]
        present = self._get_present()
        try:
            facts = await present.load_adapter(source)
        except InvalidAdapter as error:
            fault = str(error)
        else:
            if number in self._adapters and facts.digest == digest:
                self._present_adapters.add(number)
                return True
            # Answers that began with the old content would go on with the new one.
            present.drop_adapter(number)
            fault = f"the files of {source.name} have changed"
        if self._adapters.pop(number, None) is None:
            return True
        logger.error("after the sleep: %s", fault)
        return False

    def _collect(self) -> int:
        collect_settled()
        return self._trim()

    def _get_present(self) -> Executor[PlanT, ResultT]:
        assert self._present is not None, "the model is loaded"
        return self._present

    def _get_local(self) -> LocalExecutor[PlanT, ResultT]:
        present = self._get_present()
        assert isinstance(present, LocalExecutor), "others have no level 1"
        return present
