"""A request's texts on their way through the renderer workers, a job at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import trio

from ..errors import InvalidParameter
from ..render import PoolingRenderer, TextInput, TextOptions
from ..types.pooling import PoolingInput


class PoolingJobs:
    """One request's share of the renderer workers.

    Its jobs queue up for the workers one by one and not all at once, so that a short
    request waits for a job of each long one, and not for all of them.
    """

    def __init__(self, renderer: PoolingRenderer, options: TextOptions) -> None:
        self._renderer = renderer
        self._options = options
        # Several requests may take all workers; one alone leaves one to others.
        num_workers = renderer.workers.limiter.total_tokens
        self._turn = trio.CapacityLimiter(max(1, num_workers - 1))

    async def render_texts(
        self, texts: Sequence[TextInput], numbers: range, param: str
    ) -> list[tuple[PoolingInput, ...]]:
        """Make the inputs of texts[numbers]; `param` is their field, for errors."""
        async with self._turn:
            return await self._renderer.render_texts(
                texts[numbers.start : numbers.stop],
                self._options,
                lambda index: _name(param, numbers.start + index, len(texts)),
            )

    async def render_pairs(
        self, pairs: Sequence[tuple[str, str]], numbers: range, param: str
    ) -> list[PoolingInput]:
        """Make the inputs of pairs[numbers]."""
        async with self._turn:
            return await self._renderer.render_pairs(
                pairs[numbers.start : numbers.stop],
                self._options,
                lambda index: _name(param, numbers.start + index, len(pairs)),
            )


def as_kind(options: TextOptions, kind: str) -> TextOptions:
    """Say on which side of a search texts stand.

    Raises:
      InvalidParameter: it is neither.
    """
    match kind:
        case "query" | "document":
            return replace(options, kind=kind)
        case _:
            raise InvalidParameter("kind", "must be query or document")


def _name(param: str, index: int, num_texts: int) -> str:
    return f"{param}[{index}]" if num_texts > 1 else param
