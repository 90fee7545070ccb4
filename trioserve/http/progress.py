"""How far a request has come."""

from __future__ import annotations

from typing import Final, Literal, Protocol, get_args

# What a request waits for:
#
#   body     the rest of its body
#   render   its texts or images: to be decoded, templated, tokenized, or their turn
#   queue    its turn on the device
#   prefill  its first token; of a model that pools, the device, or its turn there
#   decode   its next token
#   write    its answer's way to the client
Phase = Literal["body", "render", "queue", "prefill", "decode", "write"]

PHASES: Final[tuple[Phase, ...]] = get_args(Phase)


class HasPhase(Protocol):
    """Something that knows its own phase."""

    @property
    def phase(self) -> Phase: ...


class Progress:
    """The phase that one request is in."""

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
        """Stay in a phase, whatever comes."""
        self.enter(phase)
        self._source = None
        self._has_stopped = True

    def follow(self, source: HasPhase) -> None:
        """Let `source` tell the phase from now on."""
        if not self._has_stopped:
            self._source = source
