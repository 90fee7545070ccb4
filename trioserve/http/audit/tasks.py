"""Finds tasks, tokens of limiters and threads whose request has ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import trio

from ...observe import Leak, LeakKind, Owner, find_owner_of
from ...render import RendererWorkers


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
    limiters: Iterable[tuple[str, trio.CapacityLimiter]],
) -> Iterator[Leak]:
    """Yield the tokens that are held for a request that has ended.

    Args:
      limiters: with their names.
    """
    for name, limiter in limiters:
        for borrower in limiter.statistics().borrowers:
            if isinstance(borrower, trio.lowlevel.Task):
                owner = find_owner_of(borrower)
            else:
                owner = getattr(borrower, "owner", None)
            yield from _check("tokens", borrower, owner, f"a token of the {name}")


def find_leaked_threads(
    workers: Iterable[tuple[str, RendererWorkers]],
) -> Iterator[Leak]:
    """Yield the threads that still work for a request that has ended."""
    for name, each in workers:
        for call in each.list_abandoned():
            yield from _check("threads", call, call.owner, f"a thread of the {name}")


def _check(
    kind: LeakKind, thing: object, owner: Owner | None, text: str
) -> Iterator[Leak]:
    if owner is not None and owner.ended_at is not None:
        yield Leak(kind=kind, key=thing, request_id=str(owner.id), text=text)
