"""Runs several awaitables at once; the first failure cancels the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from ...errors import TrioserveError, find_first

T = TypeVar("T")


async def run_together(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run calls at once, and return their results in the order of the calls.

    If one fails, the others are cancelled, because the request is answered with that
    error. The error is raised without an exception group.
    """
    if len(calls) == 1:
        return [await calls[0]()]
    results: dict[int, T] = {}

    async def run(index: int) -> None:
        results[index] = await calls[index]()

    failure: TrioserveError | None = None
    try:
        async with trio.open_nursery() as nursery:
            for index in range(len(calls)):
                nursery.start_soon(run, index)
    except* TrioserveError as errors:
        # Two may fail in the same turn of the loop; the answer reports one error.
        failure = find_first(errors)
    # Outside of the clause, because Python 3.11.2 (Debian 12) raises a group there.
    if failure is not None:
        raise failure from None
    return [results[index] for index in range(len(calls))]
