"""An engine that runs as long as a block, in a nursery that stays hidden."""

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

    The nursery's exception groups stay inside: an `except ValueError` around the block
    catches a ValueError that is raised in it.

    Raises:
      The error of the block, the same object.
      EngineDied: the engine failed; __cause__ has the reason. It takes the place of an
        EngineDied that the block raised, which reports the same failure.
      ExceptionGroup: the engine failed, and the block raised another error.
    """
    own: Exception | None = None
    others: BaseExceptionGroup[BaseException] | None = None
    try:
        # Strict, even if the program runs trio with another default.
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            await nursery.start(_run, engine)
            try:
                yield
            except Exception as error:
                # Kept outside of the nursery, which would build a new group.
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
    """Return the error that leaves the block.

    Args:
      own: the error of the block.
      others: the errors of the nursery besides it.
    """
    # An error takes precedence over a cancellation: it leaves the block, too.
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
    """Return whether an error of the block only reports the failure of the engine."""
    group = ExceptionGroup("", [error])
    return group.split(EngineDied)[1] is None


def _unwrap(error: BaseException) -> BaseException:
    """Take an error out of the groups of one member that the nurseries make."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
