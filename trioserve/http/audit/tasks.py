"""Finds tasks, tokens of limiters and threads whose request has ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import trio

from ...observe import Leak, LeakKind, Owner, find_owner_of
from ...render import RendererWorkers, Workplace


def find_leaked_tasks() -> Iterator[Leak]:
    """Yield the tasks of this event loop whose request has ended."""
    root = trio.lowlevel.current_root_task()
    tasks = [] if root is None else [root]
    while tasks:
        task = tasks.pop()
        for nursery in task.child_nurseries:
            tasks += nursery.child_tasks
        yield from _check("tasks", task, find_owner_of(task), task.name)


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


def _check(
    kind: LeakKind, thing: object, owner: Owner | None, text: str
) -> Iterator[Leak]:
    if owner is not None and owner.has_ended:
        yield Leak(kind=kind, key=thing, request_id=str(owner.id), text=text)
