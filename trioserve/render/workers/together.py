"""Several awaitables side by side, of which the first failure ends all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from ...errors import TrioserveError, find_first

T = TypeVar("T")


async def run_together(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Make calls side by side; the results are in their order.

    Where one fails the others are cancelled, so none goes on for a request that is
    answered already, and its error is raised alone.
    """
    if len(calls) == 1:
        return [await calls[0]()]
    results: dict[int, T] = {}

    async def run(index: int) -> None:
        results[index] = await calls[index]()

    try:
        async with trio.open_nursery() as nursery:
            for index in range(len(calls)):
                nursery.start_soon(run, index)
    except* TrioserveError as errors:
        # Two may fail in the same turn; one answer has room for one of them.
        raise find_first(errors) from None
    return [results[index] for index in range(len(calls))]
