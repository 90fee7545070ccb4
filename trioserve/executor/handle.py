"""The handle of a submitted step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import outcome

ResultT = TypeVar("ResultT")


class Handle(Generic[ResultT]):
    """The StepHandle of executors in this process.

    Args:
      notify: called when the step is done.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._outcome: outcome.Outcome[ResultT] | None = None

    @property
    def is_done(self) -> bool:
        return self._outcome is not None

    def set(self, result: outcome.Outcome[ResultT]) -> None:
        """Store the result of the step; called once, in the event loop."""
        self._outcome = result
        self._notify()

    def take(self) -> ResultT:
        assert self._outcome is not None, "the step is done"
        return self._outcome.unwrap()
