"""Looks for leaks each minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
import logging
from typing import Final, Protocol

import trio

from ...errors import EngineProcessDied
from ...frontend import PoolingEngine, TextEngine
from ...observe import LEAK_KINDS, EngineAudit, Leak, LeakKind, Owner, find_owner_of
from ...observe.process_holdings import inspect_process
from ...render import RendererWorkers, Workplace
from ..bodies.memory import MemoryBudget
from .process import ProcessAudit

# Each takes up to 4 microseconds, in which nothing else runs.
_TASKS_PER_TURN: Final = 500


async def find_leaked_tasks() -> list[Leak]:
    """Return the tasks of this event loop whose request has ended.

    Some of them may have ended meanwhile.
    """
    root = trio.lowlevel.current_root_task()
    tasks = [] if root is None else [root]
    leaks: list[Leak] = []
    num_seen = 0
    while tasks:
        task = tasks.pop()
        num_seen += 1
        for nursery in task.child_nurseries:
            tasks += nursery.child_tasks
        owner = find_owner_of(task)
        if owner is not None and owner.has_ended:
            leaks += _check("tasks", task, owner, task.name)
        if num_seen % _TASKS_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
    return leaks


def find_leaked_tokens(
    workplaces: Iterable[Workplace],
) -> Iterator[Leak]:
    """Yield the tokens that are held for a request that has ended."""
    for each in workplaces:
        for borrower in each.limiter.statistics().borrowers:
            owner = find_owner_of(borrower)
            yield from _check("tokens", borrower, owner, f"the token of a {each.name}")


def find_leaked_threads(
    workers: Iterable[tuple[str, RendererWorkers]],
) -> Iterator[Leak]:
    """Yield the threads that still work for a request that has ended."""
    for name, each in workers:
        for call in each.list_abandoned():
            yield from _check("threads", call, call.owner, f"a {name}")


def find_forgotten_threads() -> Iterator[Leak]:
    """Yield threads of trio's own limiter; no request may run.

    Requests use it for look-ups of names, which may hang longer than they.
    """
    limiter = trio.to_thread.current_default_thread_limiter()
    for borrower in limiter.statistics().borrowers:
        text = "a thread of trio's, such as the look-up of a name"
        yield Leak(kind="threads", key=borrower, request_id=None, text=text)


def _check(
    kind: LeakKind, thing: object, owner: Owner | None, text: str
) -> Iterator[Leak]:
    if owner is not None and owner.has_ended:
        yield Leak(kind=kind, key=thing, request_id=str(owner.id), text=text)


logger = logging.getLogger(__name__)

_SECONDS: Final = 60.0

# An engine process that does not answer in this time is looked at a minute later.
_ENGINE_SECONDS: Final = 10.0

# Lines in the log for one look.
_MAX_LINES: Final = 20


class Watched(Protocol):
    """The server that is watched."""

    @property
    def engines(self) -> Sequence[TextEngine | PoolingEngine]: ...

    @property
    def bodies(self) -> MemoryBudget: ...

    @property
    def is_idle(self) -> bool: ...

    def take_ended_ids(self) -> tuple[str, ...]:
        """Return the ids of the last requests that ended since the last call."""


class LeakAudit:
    """Finds things that outlive their request.

    A thing that is just being released may look like a leak, so only a thing found twice in
    a row counts. Descriptors and shared memory are looked at while no request runs.

    Attributes:
      list_connections: returns the descriptors of open connections; None where clients do
        not connect to this process.
      num_audits: looks so far.
      num_leaks: leaks found so far, by kind.
    """

    def __init__(self, server: Watched) -> None:
        self._server = server
        self.list_connections: Callable[[], Collection[int]] | None = None
        # Numbers of things: found by the last look, and counted.
        self._suspects: dict[tuple[str, Hashable], int] = {}
        self._known: dict[tuple[str, Hashable], int] = {}
        self._ended_ids: tuple[str, ...] = ()
        self._own_process = ProcessAudit("the server's process")
        self._engine_processes: dict[int, ProcessAudit] = {}
        self.num_audits = 0
        self.num_leaks: Counter[tuple[str, ...]] = Counter(
            {(each,): 0 for each in LEAK_KINDS}
        )

    async def run(self) -> None:
        """Look each minute, until cancelled."""
        while True:
            await trio.sleep(_SECONDS)
            try:
                await self.look()
            except Exception:
                # Such as a lack of descriptors. The server must not end of it.
                logger.exception("the leak audit failed")

    async def look(self) -> list[Leak]:
        """Look once; returns the leaks that are new or have grown, and logs them."""
        found = {(each.kind, each.key): each for each in await self._find()}
        self.num_audits += 1
        new = [leak for name, leak in found.items() if self._count(name, leak)]
        self._suspects = {name: leak.number for name, leak in found.items()}
        self._known = {name: self._known.get(name, 0) for name in found}
        # A new leak was there at the last look, so its request ended before that.
        _log(new, self._ended_ids)
        self._ended_ids = self._server.take_ended_ids()
        return new

    def _count(self, name: tuple[str, Hashable], leak: Leak) -> int:
        """Count the things that were there at the last look, and are not known yet."""
        num_known = min(self._known.get(name, 0), leak.number)
        num_twice = min(self._suspects.get(name, 0), leak.number)
        self._known[name] = max(num_known, num_twice)
        num_new = self._known[name] - num_known
        self.num_leaks[leak.kind,] += num_new
        return num_new

    async def _find(self) -> list[Leak]:
        leaks = await find_leaked_tasks()
        looks_at_process = self._server.is_idle
        self._follow_engines()
        audits: list[tuple[TextEngine | PoolingEngine, EngineAudit | None]] = []
        for engine in self._server.engines:
            leaks += find_leaked_tokens(engine.renderer.list_workplaces())
            leaks += find_leaked_threads(engine.renderer.list_workers())
            audit = await _ask(engine, looks_at_process)
            audits.append((engine, audit))
            if audit is not None:
                leaks += audit.leaks
        # A request may have come meanwhile, and an engine may have gone.
        is_same = [each for each, _ in audits] == [*self._server.engines]
        if looks_at_process and self._server.is_idle and is_same:
            leaks += self._find_ownerless(audits)
        return leaks

    def _follow_engines(self) -> None:
        """Begin anew if engines have come or gone, and descriptors with them."""
        running = [*map(id, self._server.engines)]
        if running != [*self._engine_processes]:
            self._own_process = ProcessAudit("the server's process")
            self._engine_processes = {
                each: ProcessAudit("the engine process") for each in running
            }

    def _find_ownerless(
        self, audits: Iterable[tuple[TextEngine | PoolingEngine, EngineAudit | None]]
    ) -> Iterator[Leak]:
        """Yield the leaks that only show while no request runs."""
        connections = None if self.list_connections is None else self.list_connections()
        yield from self._own_process.find(inspect_process(), connections)
        for engine, audit in audits:
            if audit is not None and audit.process is not None:
                yield from self._engine_processes[id(engine)].find(audit.process)
            if engine.renderer.room.statistics().num_requests:
                text = "a place in the renderer's waiting room"
                yield Leak(kind="tokens", key="room", request_id=None, text=text)
        yield from find_forgotten_threads()
        if self._server.bodies.num_bytes:
            text = f"{self._server.bodies.num_bytes} bytes of bodies"
            yield Leak(kind="memory", key="bodies", request_id=None, text=text)


async def _ask(engine: TextEngine | PoolingEngine, process: bool) -> EngineAudit | None:
    with trio.move_on_after(_ENGINE_SECONDS):
        try:
            return await engine.engine.audit(process=process)
        except EngineProcessDied:
            # It holds nothing any more.
            pass
    return None


def _log(leaks: Sequence[Leak], ended_ids: Sequence[str]) -> None:
    for each in leaks[:_MAX_LINES]:
        request_id = each.request_id or _describe(ended_ids)
        logger.error(
            "leak of %s: %s outlives request %s", each.kind, each.text, request_id
        )
    if len(leaks) > _MAX_LINES:
        logger.error("%d more leaks", len(leaks) - _MAX_LINES)


def _describe(ids: Sequence[str]) -> str:
    """Describe a request that is one of some."""
    if len(ids) <= 1:
        return ids[0] if ids else "unknown"
    return f"unknown, perhaps one of {', '.join(ids)}"
