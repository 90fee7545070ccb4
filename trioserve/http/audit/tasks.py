"""Finds tasks, tokens of limiters and threads whose request has ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import trio

from ...observe import Leak, LeakKind, Owner, find_owner_of
from ...render import RendererWorkers, Workplace

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
