"""Several models behind one door: an engine for each, which is loaded when it is needed.

policy.py decides. Each engine is a task in the router's nursery, from the begin of its load to
its end, so a cancelled router leaves nothing behind, and an engine that fails ends alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
)
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import chain
import logging
import math
from typing import Final, Literal

import trio

from ...errors import (
    AdapterRefused,
    EngineDied,
    ModelFailed,
    ModelNotFound,
    StartupError,
    TrioserveError,
    find_first,
)
from ...render import RendererWorkers
from ...types.model_info import ModelInfo, find_name, strip_tag
from ...types.pooling import Task
from ..pooling import PoolingEngine
from ..text import TextEngine
from .policy import ModelPolicy, ModelState, ModelView, Purpose, Ticket

logger = logging.getLogger(__name__)

Engine = TextEngine | PoolingEngine

# Seconds after a failure in which requests are refused at once. A load that fails takes about
# as long, and a client that tries again at once would keep the machine busy with it.
RETRY_SECONDS: Final = 5.0

# Workers that decode bodies before it is known which model answers.
_NUM_READERS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model that the router may load.

    Args:
      name: of the model, which answers have.
      other_names: further names that clients may use.
      source: the model as the operator wrote it, which clients may also write.
      adapters: the names of its adapters.
      num_bytes: an estimate of its memory.
      open_engine: loads the model, and runs its engine in the block.
    """

    name: str
    other_names: tuple[str, ...] = ()
    source: str = ""
    adapters: tuple[str, ...] = ()
    num_bytes: int = 0
    open_engine: Callable[[], AbstractAsyncContextManager[Engine]]

    @property
    def names(self) -> tuple[str, ...]:
        """The names that clients are told."""
        return self.name, *self.other_names


@dataclass(slots=True, kw_only=True)
class LoadCounts:
    """The loads of a model since the start.

    Args:
      seconds: of the loads that ended well, together.
    """

    num_loads: int = 0
    num_failures: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """A model, and its present state.

    Args:
      engine: None unless it is loaded.
      info: the facts about the model; None until it was loaded once.
      task: its task, if there are facts.
    """

    entry: ModelEntry
    view: ModelView
    engine: Engine | None
    info: ModelInfo | None
    task: Task
    counts: LoadCounts

    @property
    def state(self) -> ModelState | Literal["sleeping"]:
        """The state for clients: an engine may sleep by itself (types/sleep.py)."""
        is_asleep = self.engine is not None and self.engine.is_asleep
        return (
            "sleeping" if is_asleep and self.view.state == "loaded" else self.view.state
        )


class _Run:
    """One engine, from the begin of its load to its end."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.may_close = trio.Event()
        self.engine: Engine | None = None
        # The reason why it cannot wake.
        self.failure = ""

    def close(self) -> None:
        """End the engine, which nobody uses, or its load."""
        if self.engine is None:
            self.scope.cancel()
        self.may_close.set()


class Visit:
    """A request's use of a model, until `leave`."""

    def __init__(self, router: ModelRouter, model: str, purpose: Purpose) -> None:
        self._router = router
        self._changed = trio.Event()
        self._error: TrioserveError | None = None
        self._ticket = router.take_ticket(model, self._changed.set, purpose)

    @property
    def has_to_wait(self) -> bool:
        return self._ticket.state == "waiting"

    async def wait(self) -> Engine:
        """Wait until the model is loaded, and return its engine.

        Raises:
          ModelFailed: it cannot be loaded.
        """
        if self.has_to_wait:
            await self._changed.wait()
        return self._router.find_engine(self._ticket)

    def leave(self) -> None:
        """Let the model go."""
        self._router.return_ticket(self._ticket)


class ModelRouter:
    """Loads models, hands out their engines, and ends the engines that nobody needs.

    Args:
      entries: the models; requests that name none get the first.
      budget: the bytes that all models may hold together; None sets no limit.
      min_residence: seconds for which a loaded model stays at least.

    Attributes:
      budget: as above.
      workers: decode the bodies of requests before a model is chosen.
    """

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        *,
        budget: int | None = None,
        min_residence: float = 0.0,
    ) -> None:
        self._entries = {each.name: each for each in entries}
        # The source of one may be the name of another one, which wins then.
        self._names = {each.source: each.name for each in reversed(entries)}
        self._names |= {
            alias: each.name
            for each in entries
            for alias in (*each.names, *each.adapters)
        }
        self._adapters = {name for each in entries for name in each.adapters}
        self.budget = budget
        self.workers = RendererWorkers(_NUM_READERS)
        self._policy = ModelPolicy(
            {each.name: each.num_bytes for each in entries},
            budget=budget,
            min_residence=min_residence,
            pause=RETRY_SECONDS,
        )
        self._runs: dict[str, _Run] = {}
        # They stay when an engine has gone.
        self._facts: dict[str, tuple[ModelInfo, Task]] = {}
        self._counts = {name: LoadCounts() for name in self._entries}
        # The models of adapters that are being loaded, by the names of these.
        self._claims: dict[str, str] = {}
        self._nursery: trio.Nursery | None = None
        self._context = copy_context()
        self._wakes_at = math.inf
        self._is_changed = trio.Event()

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run the engines until cancelled."""
        self._context = copy_context()
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                self._is_changed = trio.Event()
                with trio.move_on_at(self._wakes_at):
                    await self._is_changed.wait()
                if trio.current_time() >= self._wakes_at:
                    self._settle()

    def list_names(self) -> tuple[str, ...]:
        """Return the names that clients are told, of models and of adapters."""
        return tuple(chain.from_iterable(map(self._list_own, self._entries.values())))

    def _list_own(self, entry: ModelEntry) -> tuple[str, ...]:
        run = self._runs.get(entry.name)
        if run is None or run.engine is None:
            return *entry.names, *entry.adapters
        return run.engine.list_names()

    def find_loaded(self, name: str | None) -> Engine | None:
        """Return the engine of a model, if it is loaded.

        Raises:
          ModelNotFound
        """
        run = self._runs.get(self.find(name))
        return None if run is None else run.engine

    @property
    def engines(self) -> list[Engine]:
        """The engines that run."""
        runs = self._runs.values()
        return [each.engine for each in runs if each.engine is not None]

    def find(self, name: str | None) -> str:
        """Return the model of a name, or of an adapter; the first one if there is no name.

        Raises:
          ModelNotFound
        """
        if not name:
            return next(iter(self._entries))
        found = find_name(name, self._names)
        if found is not None:
            return self._names[found]
        for model, run in self._runs.items():
            # Clients may have loaded an adapter.
            if run.engine is not None and run.engine.find(name) is not None:
                return model
        raise ModelNotFound(name, served=self.list_names())

    @contextmanager
    def claim_name(self, engine: Engine, name: str) -> Iterator[None]:
        """Let an engine load an adapter in the block, whose name must choose no other model.

        Args:
          engine: of a model that is loaded.

        Raises:
          AdapterRefused: another model or its adapter has the name, or is about to get it.
        """
        [own] = [
            model
            for model, run in self._runs.items()
            if run.engine is not None and run.engine.engine is engine.engine
        ]
        plain = strip_tag(name)
        try:
            owner = self._claims.get(plain) or self.find(name)
        except ModelNotFound:
            owner = own
        if owner != own:
            reason = f"{name!r} is a name of another model, or of its adapter"
            raise AdapterRefused("lora_name", reason)
        self._claims[plain] = own
        try:
            yield
        finally:
            self._claims.pop(plain, None)

    def choose(self, engine: Engine, name: str | None) -> Engine:
        """Return an engine for one of its names, or the view of an adapter.

        Raises:
          ModelNotFound: the adapter of the configuration was unloaded.
        """
        found = engine.find(name) if name else engine
        if found is None and name and find_name(name, self._adapters) is not None:
            raise ModelNotFound(name, served=self.list_names())
        return found or engine

    def visit(self, name: str, purpose: Purpose = "compute") -> Visit:
        """Ask for a model, which is loaded if it has to be; `leave` gives it back.

        If it sleeps and has to wake, the visit also waits for the memory.

        Args:
          name: as `find` returns it.
        """
        return Visit(self, name, purpose)

    @asynccontextmanager
    async def hold(self, name: str | None = None) -> AsyncIterator[Engine]:
        """Use a model in the block. It is loaded first if it has to be.

        Raises:
          ModelNotFound, ModelFailed
        """
        visit = self.visit(self.find(name))
        try:
            engine = await visit.wait()
            yield self.choose(engine, name)
        finally:
            visit.leave()

    def load(self, name: str) -> None:
        """Begin to load a model, if it is not loaded. Its state tells how that ends.

        Raises:
          ModelFailed: it is too large.
        """
        ticket = self._policy.load(name, trio.current_time(), lambda: None)
        self._settle()
        if ticket.state == "refused":
            raise self._explain(ticket)

    def keep_loading(self, name: str) -> None:
        """Let a model be loaded, though the request that has waited is told to come again.

        Its load may not have begun, because others hold the memory.
        """
        run = self._runs.get(name)
        if run is None or run.engine is None:
            self.load(name)

    def unload(self, name: str) -> None:
        """End the engine of a model when its requests have ended."""
        self._policy.unload(name)
        self._settle()

    def describe(self) -> Iterator[ModelStatus]:
        """Describe all models, in their order."""
        for view in self._policy.describe():
            run = self._runs.get(view.name)
            facts = self._facts.get(view.name)
            yield ModelStatus(
                entry=self._entries[view.name],
                view=view,
                engine=None if run is None else run.engine,
                info=None if facts is None else facts[0],
                task="generate" if facts is None else facts[1],
                counts=self._counts[view.name],
            )

    # For visits.

    def take_ticket(
        self, name: str, notify: Callable[[], None], purpose: Purpose
    ) -> Ticket:
        now = trio.current_time()
        ticket = self._policy.ask(name, now, notify, purpose=purpose)
        if ticket.state == "waiting":
            self._settle()
        return ticket

    def return_ticket(self, ticket: Ticket) -> None:
        self._policy.leave(ticket, trio.current_time())
        if not self._policy.is_settled:
            self._settle()

    def find_engine(self, ticket: Ticket) -> Engine:
        """Return the engine for a ticket that does not wait.

        Raises:
          ModelFailed
        """
        if ticket.state == "refused":
            raise self._explain(ticket)
        run = self._runs.get(ticket.model)
        engine = None if run is None else run.engine
        # It may have failed since, and be on its way out.
        failure = "" if run is None else run.failure
        if engine is None or failure or _has_died(engine):
            raise ModelFailed(
                ticket.model,
                failure or "its engine failed",
                retry_after_seconds=RETRY_SECONDS,
            )
        return engine

    def _explain(self, ticket: Ticket) -> ModelFailed:
        return ModelFailed(
            ticket.model, ticket.reason, retry_after_seconds=RETRY_SECONDS
        )

    def _settle(self) -> None:
        """Do what the policy decides now."""
        if self._nursery is None:
            # Models may be asked for before the router runs.
            self._wakes_at = -math.inf
            return
        decision = self._policy.decide(trio.current_time())
        for name in decision.close:
            self._runs[name].close()
        for name in decision.load:
            self._runs[name] = _Run()
            # An engine outlives the request that has asked for it, and is not its own.
            self._context.run(
                self._nursery.start_soon, self._serve, name, self._runs[name]
            )
        self._wakes_at = decision.wakes_at
        self._is_changed.set()

    async def _serve(self, name: str, run: _Run) -> None:
        """Load a model and run its engine until it is closed, or fails."""
        failure: Exception | None = None
        with run.scope:
            try:
                await self._run_engine(name, run)
            except Exception as error:
                failure = error
        del self._runs[name]
        if failure is None:
            logger.info("unloaded %s", name)
            self._policy.note_closed(name)
        else:
            reason = _describe(failure)
            self._note_failure(name, reason)
            self._policy.note_failed(name, reason, trio.current_time())
        self._settle()

    def _note_failure(self, name: str, reason: str) -> None:
        self._counts[name].num_failures += 1
        logger.error("%s failed: %s", name, reason)

    async def _run_engine(self, name: str, run: _Run) -> None:
        entry, counts = self._entries[name], self._counts[name]
        began = trio.current_time()
        logger.info("loading %s", name)
        async with entry.open_engine() as engine:
            now = trio.current_time()
            run.engine = engine
            task: Task = "generate"
            if isinstance(engine, PoolingEngine):
                task = engine.pooling.task
            self._facts[name] = engine.info, task
            counts.num_loads += 1
            counts.seconds += now - began
            num_bytes = engine.info.memory_bytes or entry.num_bytes
            if reason := self._policy.note_loaded(name, num_bytes, now):
                self._note_failure(name, reason)
            engine.engine.on_sleep = partial(self._note_sleep, name, run, engine)
            self._note_sleep(name, run, engine)
            await run.may_close.wait()
        if run.failure:
            raise StartupError(run.failure)

    def _note_sleep(self, name: str, run: _Run, engine: Engine) -> None:
        state = engine.engine.sleep_state
        if state.failure:
            run.failure = state.failure
            run.close()
            return
        num_bytes = None
        if state.phase == "asleep":
            num_bytes = state.memory_bytes
            if not engine.info.memory_bytes:
                # The size is an estimate, because models share the process.
                num_bytes = 0 if state.level == 2 else self._entries[name].num_bytes
        self._policy.note_sleep(name, num_bytes, is_ordered=state.is_ordered)
        self._settle()


def _has_died(engine: Engine) -> bool:
    try:
        engine.check_alive()
    except EngineDied:
        return True
    except TrioserveError:
        # It is there, and tells its requests why they must wait.
        pass
    return False


def _describe(error: Exception) -> str:
    """Return a sentence about the failure of a load, or of an engine."""
    if isinstance(error, ExceptionGroup):
        error = find_first(error)
    if isinstance(error, EngineDied) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return str(error) or type(error).__name__


@asynccontextmanager
async def open_router(router: ModelRouter) -> AsyncIterator[ModelRouter]:
    """Run a router until the block is left; its engines end with it.

    The nursery's exception groups stay inside.
    """
    own: Exception | None = None
    async with trio.open_nursery(strict_exception_groups=True) as nursery:
        await nursery.start(router.run)
        try:
            yield router
        except Exception as error:
            own = error
        nursery.cancel_scope.cancel()
    if own is not None:
        raise own
