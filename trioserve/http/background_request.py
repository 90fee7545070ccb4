"""A request that goes on in the background: it is listed, cancelled and logged as others."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import trio

from ..observe import find_owner
from ..types.sampling import SamplingParams
from .record.progress import EndedRequest, Ending, Phase, SamplingFacts, TokenCounts
from .record.request_counts import Cancellation
from .record.stream_meter import StreamMeter
from .scope import ScopedRequest
from .state import ServerState


class BackgroundRequest:
    """The part of a request that runs in the background.

    The part that answers the client is listed and logged, too, under the same id.

    Args:
      request: has rendered the prompt.
    """

    def __init__(
        self, state: ServerState, request: ScopedRequest, sampling: SamplingParams
    ) -> None:
        assert request.model.engine is not None, "its prompt is rendered"
        self._state = state
        # The request itself is not kept: it holds its connection.
        self._begun = replace(
            request.describe_end(request.model.engine.info.name),
            status=None,
            sampling=SamplingFacts.of(sampling),
        )
        self._progress = request.progress.branch()
        self._cancellation = Cancellation(
            request.id, state.counts, partial(state.after_aborts, request.model)
        )
        self._live = request.live.detach(self._progress, self._cancellation)
        self._listed = ExitStack()
        self._meter: StreamMeter | None = None
        self._ending: Ending = "cut"
        self._error: str | None = None
        self._failed_in: Phase | None = None

    def begin(self, meter: StreamMeter) -> None:
        """List the request; the engine has it. The task that generates calls this."""
        owner = find_owner()
        assert owner is not None, "a task in the background has an owner"
        self._live.owner = owner
        self._live.model = self._live.model.detach()
        self._live.stream = self._meter = meter
        self._progress.follow(meter)
        meter.on_deadline = self._cancellation.note_end
        self._listed.enter_context(self._state.live.hold(self._live))

    def cancel(self) -> None:
        """End the stream by RequestCancelled."""
        self._live.cancel()

    def note_answer(self) -> None:
        """Note that the answer is whole."""
        self._ending = "answered"

    def note_error(self, kind: str) -> None:
        """Note that the request ends with an error of a type."""
        self._ending, self._error = "error", kind
        self._failed_in = self._progress.phase

    def end(self) -> None:
        """List the request no more, and log it, if it has begun."""
        if self._meter is None:
            return
        self._live.model.close()
        if self._ending == "cut":
            self._failed_in = self._progress.phase
        self._listed.close()
        self._cancellation.end()
        self._state.live.note_ended(self._live)
        self._state.record(self._describe(self._meter))

    def _describe(self, meter: StreamMeter) -> EndedRequest:
        begun, now = self._begun, trio.current_time()
        return replace(
            begun,
            ended_at=now,
            spans=tuple(self._progress.divide(begun.arrived_at, now)),
            phase=self._failed_in,
            tokens=TokenCounts.of(meter.usage),
            finish_reasons=meter.finish_reasons,
            error=self._error,
            ending=self._ending,
        )
