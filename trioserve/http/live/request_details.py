"""Everything that one running request holds, and where it is."""

from __future__ import annotations

from typing import Final

import msgspec
import trio

from ...engine.core import EngineProcessDied
from ...frontend import (
    PoolingEngine,
    TextEngine,
)
from ...observe import Owner
from ..record.descriptions import RequestDetails
from ..record.progress import Phase
from .live_requests import LiveRequest
from .task_tree import describe_tasks

# An engine process answers between two turns of its event loop.
_ENGINE_SECONDS: Final = 1.0

# The place of a request that no worker has, and that waits for none.
_PLACES: Final[dict[Phase, str]] = {
    "body": "upload",
    "render": "event loop",
    "queue": "engine queue",
    "prefill": "device",
    "decode": "device",
    "write": "client",
}


async def describe_request(
    request: LiveRequest, engine: TextEngine | PoolingEngine | None
) -> RequestDetails:
    """Describe a running request."""
    card = request.describe()
    task = request.owner.task
    return RequestDetails(
        **msgspec.structs.asdict(card),
        worker=_locate(request, engine) or _PLACES[card.phase],
        deadline_seconds=request.deadline_seconds,
        task=None if task is None else describe_tasks(task),
        kv_blocks=0 if engine is None else await _count_blocks(request.owner, engine),
    )


def _locate(
    request: LiveRequest, engine: TextEngine | PoolingEngine | None
) -> str | None:
    """Return the worker of the renderer that a request has or waits for."""
    if engine is None:
        return None
    places = (each.locate(request.owner) for each in engine.renderer.list_workplaces())
    return next(filter(None, places), None)


async def _count_blocks(owner: Owner, engine: TextEngine | PoolingEngine) -> int | None:
    with trio.move_on_after(_ENGINE_SECONDS):
        try:
            return await engine.engine.count_blocks(owner)
        except EngineProcessDied:
            return 0
    return None
