"""The progress of a request through its phases."""

from __future__ import annotations

from typing import Final, Literal, Protocol, get_args

# In each phase, a request waits for something else:
#
#   body     for the rest of its body
#   render   for a renderer worker, or until its texts and images are rendered
#   queue    for its turn on the device
#   prefill  for its first token; with a model that pools, for the device
#   decode   for its next token
#   write    until the client has taken the answer
Phase = Literal["body", "render", "queue", "prefill", "decode", "write"]

PHASES: Final[tuple[Phase, ...]] = get_args(Phase)


class HasPhase(Protocol):
    """An object with the phase of a request."""

    @property
    def phase(self) -> Phase: ...


class Progress:
    """The current phase of one request."""

    def __init__(self) -> None:
        self._has_stopped = False
        self._phase: Phase = "body"
        self._source: HasPhase | None = None

    @property
    def phase(self) -> Phase:
        return self._phase if self._source is None else self._source.phase

    def enter(self, phase: Phase) -> None:
        if not self._has_stopped:
            self._phase = phase

    def stop(self, phase: Phase) -> None:
        """Enter a phase and stay in it."""
        self.enter(phase)
        self._source = None
        self._has_stopped = True

    def follow(self, source: HasPhase) -> None:
        """Take the phase from `source` from now on."""
        if not self._has_stopped:
            self._source = source
