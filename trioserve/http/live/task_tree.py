"""The tree of a request's tasks: their names, and the functions in which they wait.

It has names of functions and numbers of lines, and nothing that a client sent.
"""

from __future__ import annotations

from types import FrameType
from typing import Final

import trio

from ..record.descriptions import TaskNode

# A request of a thousand texts has as many tasks.
_MAX_TASKS: Final = 64

# Of one task. The innermost ones say most.
_MAX_FRAMES: Final = 32

_MAX_NAME: Final = 200


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
    return _describe(root, budget)


def _describe(task: trio.lowlevel.Task, budget: _Budget) -> TaskNode:
    children = [child for each in task.child_nurseries for child in each.child_tasks]
    shown = [child for child in children if budget.take()]
    frames = [_name(frame, line) for frame, line in task.iter_await_frames()]
    return TaskNode(
        name=task.name[:_MAX_NAME],
        awaits=tuple(frames[-_MAX_FRAMES:]),
        tasks=tuple(_describe(child, budget) for child in shown),
        num_tasks_left_out=len(children) - len(shown),
    )


def _name(frame: FrameType, line: int) -> str:
    module = str(frame.f_globals.get("__name__", ""))
    return f"{module}.{frame.f_code.co_qualname}"[:_MAX_NAME] + f":{line}"
