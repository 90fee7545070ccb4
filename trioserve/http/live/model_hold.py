"""The model that a request uses, from its choice to the end of the request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from ...frontend import PoolingEngine, TextEngine


class ModelHold:
    """The model that a request uses.

    Attributes:
      engine: the engine that answers; None until it is chosen.
    """

    def __init__(self) -> None:
        self.engine: TextEngine | PoolingEngine | None = None
        self._held = ExitStack()

    def on_close(self, release: Callable[[], None]) -> None:
        """Call a function when the request has ended."""
        self._held.callback(release)

    def close(self) -> None:
        """Let the model go; the engine has nothing of the request any more."""
        self._held.close()

    def detach(self) -> ModelHold:
        """Hand the model over to a part of the request that goes on without it."""
        other = ModelHold()
        other.engine, other._held = self.engine, self._held.pop_all()
        return other
