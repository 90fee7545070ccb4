"""The executor of a model in this process, which runs its steps in threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from operator import methodcaller
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import outcome
import trio

from ..errors import InvalidAdapter
from ..types.adapter import AdapterFacts, AdapterSource
from ..types.output import StepResult
from ..types.plan import StepPlan
from .protocol import Handle

PlanT = TypeVar("PlanT")
ResultT = TypeVar("ResultT")

# A step in progress, with the output of the stage before; or work of the first stage between
# two steps; None ends the thread.
_Item = tuple[Handle[Any], outcome.Outcome[Any]] | Callable[[], None] | None


class Adapters(Protocol):
    """The adapters of a model; a ModelRunner."""

    def read_adapter(self, source: AdapterSource) -> tuple[AdapterFacts, Any]:
        """Read an adapter, in any thread while steps run.

        Returns:
          its facts, and its numbers as `add_adapter` takes them

        Raises:
          InvalidAdapter
        """

    def add_adapter(self, number: int, weights: Any) -> None:
        """Let later steps use an adapter; between two steps."""

    def remove_adapter(self, number: int) -> None:
        """Forget an adapter, between two steps."""


class Cache(Protocol):
    """The KV cache and the states of a model; a ModelRunner."""

    def release_cache(self) -> None:
        """Give their memory back, between two steps."""

    def restore_cache(self) -> None:
        """Allocate them again, with other content."""


class LocalExecutor(Generic[PlanT, ResultT]):
    """Runs steps in threads, in the order of submission.

    Each stage has one thread for all steps; trio's own threads would change from step
    to step. GNU OpenMP keeps a team of threads for every thread that ever called it. If
    all teams together have more threads than there are cores, waiting threads do not
    spin but sleep at once: 12 tokens of a small encoder then take 9 ms instead of 5.5.

    Args:
      stages: blocking functions. The first takes the plan, each other takes the output of
        the one before, and the last returns the result. A CPU needs one stage. A GPU
        works by itself and needs two: one thread launches the next step while the other
        waits for this one. The event loop never touches a tensor.
      depth, max_depth: see Executor; max_depth is the same as depth unless it is given.
      adapters, cache: of a model that generates.
    """

    def __init__(
        self,
        *stages: Callable[[Any], Any],
        depth: int = 1,
        max_depth: int | None = None,
        adapters: Adapters | None = None,
        cache: Cache | None = None,
    ) -> None:
        self.depth = depth
        self.max_depth = max_depth or depth
        self._adapters = adapters
        self._cache = cache
        # One adapter is read at a time: each takes the memory of its file for a moment.
        self._reading = trio.CapacityLimiter(1)
        self._stages = stages
        # The queues have no limit of their own: the loop keeps at most `depth` steps in
        # flight.
        self._queues: list[SimpleQueue[_Item]] = [SimpleQueue() for _ in stages]
        # Set in the loop, read in the threads.
        self._is_over = False

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        # A cancellation must not abandon the threads: the device would go on writing to
        # memory that is freed. So the cancellation reaches this task alone.
        limiter = trio.CapacityLimiter(len(self._stages))
        async with trio.open_nursery() as nursery:
            for work in self._list_work(trio.lowlevel.current_trio_token()):
                nursery.start_soon(_run_in_thread, work, limiter)
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._is_over = True
                self._queues[0].put(None)

    def submit(self, plan: PlanT, notify: Callable[[], None]) -> Handle[ResultT]:
        handle = Handle[ResultT](notify)
        self._queues[0].put((handle, outcome.Value(plan)))
        return handle

    async def load_adapter(self, source: AdapterSource) -> AdapterFacts:
        adapters = self._adapters
        if adapters is None:
            raise InvalidAdapter(source.name, "a model that pools runs no adapters")
        facts, weights = await trio.to_thread.run_sync(
            adapters.read_adapter, source, limiter=self._reading
        )
        # Its number is new, so that no step in flight looks for it.
        self._queues[0].put(partial(adapters.add_adapter, source.number, weights))
        return facts

    def drop_adapter(self, number: int) -> None:
        assert self._adapters is not None, "it was loaded"
        self._queues[0].put(partial(self._adapters.remove_adapter, number))

    @property
    def has_cache(self) -> bool:
        return self._cache is not None

    async def release_cache(self) -> None:
        """Give the memory of KV blocks and states back; no step is in flight."""
        assert self._cache is not None, "it has a cache"
        await self._call(self._cache.release_cache)

    async def restore_cache(self) -> None:
        """Allocate KV blocks and states again; their content is lost."""
        assert self._cache is not None, "it has a cache"
        await self._call(self._cache.restore_cache)

    async def _call(self, work: Callable[[], None]) -> None:
        """Do work in the thread of the first stage, behind the submitted steps."""
        token, is_done = trio.lowlevel.current_trio_token(), trio.Event()
        results: list[outcome.Outcome[None]] = []

        def run() -> None:
            results.append(outcome.capture(work))
            token.run_sync_soon(is_done.set)

        self._queues[0].put(run)
        await is_done.wait()
        results[0].unwrap()

    def _list_work(self, token: trio.lowlevel.TrioToken) -> list[Callable[[], None]]:
        """Return the function that each stage's thread runs."""

        def tell(item: _Item) -> None:
            if isinstance(item, tuple):
                handle, result = item
                token.run_sync_soon(handle.set, result)

        hand_on = [after.put for _, after in pairwise(self._queues)] + [tell]
        return [
            partial(self._work, stage, queue, put)
            for stage, queue, put in zip(self._stages, self._queues, hand_on)
        ]

    def _work(
        self,
        stage: Callable[[Any], Any],
        queue: SimpleQueue[_Item],
        put: Callable[[_Item], None],
    ) -> None:
        while (item := queue.get()) is not None and not self._is_over:
            if not isinstance(item, tuple):
                item()
                continue
            handle, given = item
            # A failure passes through the other stages unchanged, in order of steps.
            if isinstance(given, outcome.Value):
                given = outcome.capture(stage, given.value)
            put((handle, given))
        put(None)


class _Launched(Protocol):
    def finish(self) -> StepResult: ...


class _Runner(Adapters, Cache, Protocol):
    def step(self, plan: StepPlan) -> StepResult: ...

    def launch(self, plan: StepPlan) -> _Launched: ...


def make_local_executor(
    runner: _Runner, device_type: str, *, depth: int
) -> LocalExecutor[StepPlan, StepResult]:
    """Make an executor with as many threads as a device of this type needs.

    Args:
      runner: a model.ModelRunner.
      device_type: torch's.
    """
    if device_type == "cpu" or depth == 1:
        return LocalExecutor(runner.step, depth=depth, adapters=runner, cache=runner)
    # The thread that launches the next step must not wait for this one.
    return LocalExecutor(
        runner.launch,
        methodcaller("finish"),
        depth=depth,
        max_depth=depth + 1,
        adapters=runner,
        cache=runner,
    )


async def _run_in_thread(
    work: Callable[[], None], limiter: trio.CapacityLimiter
) -> None:
    await trio.to_thread.run_sync(work, limiter=limiter)
