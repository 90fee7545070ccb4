"""The renderer jobs of one pooling request, which enter the workers' queue in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import trio

from ..errors import InvalidParameter
from ..render import PoolingRenderer, TextInput, TextOptions
from ..types.pooling import PoolingInput


class PoolingJobs:
    """The renderer jobs of one request.

    Only some of its jobs wait for a worker at any time. So a short request waits for a few
    jobs of each long request, and not for all of them.
    """

    def __init__(self, renderer: PoolingRenderer, options: TextOptions) -> None:
        self._renderer = renderer
        self._options = options
        # One request alone leaves a worker to others; several may occupy all workers.
        num_workers = renderer.workers.limiter.total_tokens
        self._turn = trio.CapacityLimiter(max(1, num_workers - 1))

    async def render_texts(
        self, texts: Sequence[TextInput], numbers: range, param: str
    ) -> list[tuple[PoolingInput, ...]]:
        """Render texts[numbers]; `param` is the request's field, for errors."""
        async with self._turn:
            return await self._renderer.render_texts(
                texts[numbers.start : numbers.stop],
                self._options,
                lambda index: _name(param, numbers.start + index, len(texts)),
            )

    async def render_pairs(
        self, pairs: Sequence[tuple[str, str]], numbers: range, param: str
    ) -> list[PoolingInput]:
        """Render pairs[numbers]."""
        async with self._turn:
            return await self._renderer.render_pairs(
                pairs[numbers.start : numbers.stop],
                self._options,
                lambda index: _name(param, numbers.start + index, len(pairs)),
            )


def as_kind(options: TextOptions, kind: str) -> TextOptions:
    """Return the options for queries or for documents.

    Raises:
      InvalidParameter: the kind is neither.
    """
    match kind:
        case "query" | "document":
            return replace(options, kind=kind)
        case _:
            raise InvalidParameter("kind", "must be query or document")


def _name(param: str, index: int, num_texts: int) -> str:
    return f"{param}[{index}]" if num_texts > 1 else param
