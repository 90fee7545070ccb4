"""The model that a request uses, from its choice to the end of the request."""

from __future__ import annotations

from contextlib import ExitStack
import math

import trio

from ...errors import ModelLoading
from ...frontend import PoolingEngine, TextEngine
from ...frontend.models.policy import Purpose
from ...frontend.models.router import ModelRouter
from ..record.progress import RequestProgress


class ModelHold:
    """The model that a request uses.

    Args:
      progress: of the request; None if nobody asks for its phase.

    Attributes:
      name: one of several models, from its choice on; None if the server has one.
      engine: the engine that answers; None until it is chosen.
      purpose: what the request does with the model.
      starts_by: when the wait for a model ends, in seconds of trio.current_time().
      load_seconds: the time for which the request has waited for models.
    """

    def __init__(self, progress: RequestProgress | None = None) -> None:
        self._progress = progress
        self.name: str | None = None
        self.engine: TextEngine | PoolingEngine | None = None
        self.purpose: Purpose = "compute"
        self.starts_by = math.inf
        self.load_seconds = 0.0
        self._held = ExitStack()

    async def visit(self, models: ModelRouter, model: str) -> None:
        """Take a model and wait until it is loaded, in place of the one before.

        A request never holds a model while it waits for another one: two of them could
        wait for each other.

        Raises:
          ModelFailed
          ModelLoading: the wait was too long. The client may come again.
        """
        if self.engine is not None and self.name == model:
            return
        self._held.close()
        self.name, self.engine = model, None
        visit = models.visit(model, self.purpose)
        self._held.callback(visit.leave)
        phase = None if self._progress is None else self._progress.phase
        if visit.has_to_wait and self._progress is not None:
            self._progress.enter("load")
        began = trio.current_time()
        with trio.move_on_at(self.starts_by):
            self.engine = await visit.wait()
        if self.engine is None:
            raise ModelLoading()
        self.load_seconds += trio.current_time() - began
        if self._progress is not None and phase is not None:
            self._progress.enter(phase)

    def close(self) -> None:
        """Let the model go; the engine has nothing of the request any more."""
        self._held.close()
        # The progress leads to the cancellation, which leads here.
        self._progress = None

    def detach(self) -> ModelHold:
        """Hand the model over to a part of the request that goes on without it."""
        other = ModelHold()
        other.name, other.engine = self.name, self.engine
        other._held = self._held.pop_all()
        return other
