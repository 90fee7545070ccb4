"""An engine that runs as long as a block, and whose nursery nobody sees."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from ..errors import EngineDied


class RunsEngine(Protocol):
    """An engine.TokenEngine or an engine.TensorEngine."""

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run until cancelled."""


@asynccontextmanager
async def open_engine_task(engine: RunsEngine) -> AsyncIterator[None]:
    """Run an engine until the block is left.

    The nursery is a detail of this function, so its exception groups stay inside: an
    `except ValueError` around the block catches a ValueError that is raised in it.

    Raises:
      what the block raised, the same object.
      EngineDied: the engine failed; __cause__ tells why. An EngineDied that the block
        raised tells of the same failure, and this one takes its place.
      ExceptionGroup: the engine failed, and the block raised something else.
    """
    own: Exception | None = None
    others: BaseExceptionGroup[BaseException] | None = None
    try:
        # Strict, even if a host has run trio with another default.
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            await nursery.start(_run, engine)
            try:
                yield
            except Exception as error:
                # Around the nursery: on its way through, a group would be rebuilt.
                own = error
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        others = group
    # Outside of the except clause, or the group would become the error's context.
    chosen = _choose(own, others)
    if chosen is not None:
        raise chosen


async def _run(  # noqa: ASYNC128 (the engine calls started)
    engine: RunsEngine, *, task_status: trio.TaskStatus[None]
) -> None:
    try:
        await engine.run(task_status=task_status)
    except Exception as error:
        raise EngineDied() from _unwrap(error)


def _choose(
    own: Exception | None, others: BaseExceptionGroup[BaseException] | None
) -> BaseException | None:
    """Return what the block is left with.

    Args:
      own: what the block raised.
      others: what the nursery raised besides.
    """
    # A cancellation yields to an error, which unwinds as much.
    rest = None if others is None else others.split(trio.Cancelled)[1]
    if rest is None:
        return others if own is None else own
    errors = [*rest.exceptions]
    if own is not None and not _is_echo(own):
        errors.insert(0, own)
    if len(errors) == 1:
        return errors[0]
    return BaseExceptionGroup("errors of an engine and of its block", errors)


def _is_echo(error: Exception) -> bool:
    """Whether an error of the block tells of nothing but the engine's failure."""
    group = ExceptionGroup("", [error])
    return group.split(EngineDied)[1] is None


def _unwrap(error: BaseException) -> BaseException:
    """Take an error out of groups of one, which the engine's own nurseries make."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
