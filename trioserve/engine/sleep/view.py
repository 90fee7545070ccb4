"""The sleep of a core as its engine sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from ...errors import InvalidParameter, NotSupported
from ...types.sleep import SleepLevel, SleepState


class SleepView(ABC):
    """The sleep of a core, in the same process or in another one.

    Attributes:
      on_change: is called when `state` has changed.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] | None = None
        self._state = SleepState()

    @property
    def state(self) -> SleepState:
        return self._state

    def check(self, level: SleepLevel) -> None:
        """Refuse a level that the core does not have.

        Raises:
          NotSupported, InvalidParameter
        """
        levels = self.state.levels
        if not levels:
            raise NotSupported("sleep", "torchrun started the model")
        if level not in levels:
            raise InvalidParameter(
                "level",
                f"{level} is not possible for this model: only engines that generate in one "
                "process have KV blocks that they can give back alone; use level=2",
            )

    @abstractmethod
    async def sleep(self, level: SleepLevel, *, ends_requests: bool) -> None:
        """Let the core sleep until `wake`; returns when it sleeps, or is told to wake.

        Requests are refused from now on. The order stands if the call is cancelled.

        Raises:
          EngineDied, EngineProcessDied
        """

    @abstractmethod
    async def wake(self) -> None:
        """Wake the core; returns when the model can run, is told to sleep, or cannot wake.

        The order stands if the call is cancelled.

        Raises:
          EngineDied, EngineProcessDied
        """

    def _show(self, state: SleepState) -> None:
        """Take the present state."""
        if state != self._state:
            self._state = state
            if self.on_change is not None:
                self.on_change()
