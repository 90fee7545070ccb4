"""Everything that one running request holds, and where it is.

Its tree of tasks has names of functions and numbers of lines, and nothing that a client sent.
"""

from __future__ import annotations

from types import FrameType
from typing import Final

import msgspec
import trio

from ...errors import EngineProcessDied
from ...frontend import PoolingEngine, TextEngine
from ...observe import Owner
from ..record.cards import RequestDetails, TaskNode
from ..record.progress import Phase
from .live_requests import LiveRequest

# An engine process answers between two turns of its event loop.
_ENGINE_SECONDS: Final = 1.0

# A request of a thousand texts has as many tasks.
_MAX_TASKS: Final = 64

# Of one task. The innermost ones say most.
_MAX_FRAMES: Final = 32

_MAX_NAME: Final = 200

# The place of a request that no worker has, and that waits for none.
_PLACES: Final[dict[Phase, str]] = {
    "body": "upload",
    "load": "model",
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


class _Budget:
    """Counts tasks down."""

    def __init__(self) -> None:
        self.num_left = _MAX_TASKS

    def take(self) -> bool:
        self.num_left -= 1
        return self.num_left >= 0


def describe_tasks(root: trio.lowlevel.Task) -> TaskNode:
    """Describe a task and all tasks below it, up to a bound."""
    budget = _Budget()
    budget.take()
    return _describe_task(root, budget)


def _describe_task(task: trio.lowlevel.Task, budget: _Budget) -> TaskNode:
    children = [child for each in task.child_nurseries for child in each.child_tasks]
    shown = [child for child in children if budget.take()]
    frames = [_name(frame, line) for frame, line in task.iter_await_frames()]
    return TaskNode(
        name=task.name[:_MAX_NAME],
        awaits=tuple(frames[-_MAX_FRAMES:]),
        tasks=tuple(_describe_task(child, budget) for child in shown),
        num_tasks_left_out=len(children) - len(shown),
    )


def _name(frame: FrameType, line: int) -> str:
    module = str(frame.f_globals.get("__name__", ""))
    return f"{module}.{frame.f_code.co_qualname}"[:_MAX_NAME] + f":{line}"
