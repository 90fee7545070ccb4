"""The progress of a request through its phases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import copy
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

import trio

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


@dataclass(frozen=True, slots=True)
class Entry:
    """The beginning of a phase, in seconds of trio.current_time()."""

    phase: Phase
    at: float


@dataclass(frozen=True, slots=True)
class Span:
    """A phase from its beginning to its end, in seconds of trio.current_time()."""

    phase: Phase
    begins_at: float
    ends_at: float


class HasPhase(Protocol):
    """An object with the phase of a request."""

    @property
    def phase(self) -> Phase: ...


class PhaseSource(HasPhase, Protocol):
    """An object that also knows the phases before."""

    @property
    def entries(self) -> Sequence[Entry]:
        """The phases so far, in order."""
        ...


class Progress:
    """The phases of one request."""

    def __init__(self) -> None:
        self._has_stopped = False
        self._phase: Phase = "body"
        self._entries: list[Entry] = []
        self._source: PhaseSource | None = None

    @property
    def phase(self) -> Phase:
        return self._phase if self._source is None else self._source.phase

    def enter(self, phase: Phase) -> None:
        if self._has_stopped:
            return
        self._phase = phase
        # The head of a stream is sent before its tokens.
        if self._source is None:
            self._entries.append(Entry(phase, trio.current_time()))

    def stop(self, phase: Phase) -> None:
        """Enter a phase and stay in it."""
        if self._has_stopped:
            return
        source, self._source = self._source, None
        if source is not None:
            self._entries += source.entries
        self.enter(phase)
        self._has_stopped = True

    def follow(self, source: PhaseSource) -> None:
        """Take the phase from `source` from now on."""
        if not self._has_stopped:
            self._source = source

    def branch(self) -> Progress:
        """Return the progress so far, which goes on for itself."""
        other = copy.copy(self)
        other._entries = [*self._entries]
        return other

    def divide(self, arrived_at: float, ended_at: float) -> Iterator[Span]:
        """Divide the time of a request by its phases, in order.

        A stream that the request has taken up may be older than the request. Phases that
        were over before it came are left out.

        Args:
          arrived_at: when the head of the request had come.
        """
        entries = [Entry("body", arrived_at), *self._entries]
        if self._source is not None:
            entries += self._source.entries
        ends = [entry.at for entry in entries[1:]] + [ended_at]
        for entry, end in zip(entries, ends):
            if end >= arrived_at:
                yield Span(entry.phase, max(entry.at, arrived_at), end)
