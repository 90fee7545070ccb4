"""The progress of a request through its phases, and the request when it has ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import copy
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

import trio

from ...types.output import FinishReason
from ...types.sampling import SamplingParams
from .usage import Usage

# In each phase, a request waits for something else:
#
#   body     for the rest of its body
#   load     for its model to be loaded, if the server has several
#   render   for a renderer worker, or until its texts and images are rendered
#   queue    for its turn on the device
#   prefill  for its first token; with a model that pools, for the device
#   decode   for its next token
#   write    until the client has taken the answer
Phase = Literal["body", "load", "render", "queue", "prefill", "decode", "write"]

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


class RequestProgress:
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

    def branch(self) -> RequestProgress:
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


# A path may be 64 KiB long, and many may wait for a log or a collector. Paths that exist are
# shorter than this.
MAX_PATH: Final = 512

# How a request can end:
#
#   answered      the whole answer was sent
#   error         the same, but the answer, or the end of its stream, is an error
#   disconnected  the client left before it had the whole answer
#   cut           the server cut the answer off: at the deadline, or because it stops
Ending = Literal["answered", "error", "disconnected", "cut"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """The tokens of a request, in all its prompts and sequences."""

    prompt: int
    cached: int
    completion: int

    @classmethod
    def of(cls, usage: Usage) -> TokenCounts:
        return cls(
            prompt=usage.prompt_tokens,
            cached=usage.prompt_tokens_details.cached_tokens,
            completion=usage.completion_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFacts:
    """The small ones of a request's sampling parameters; see SamplingParams."""

    n: int
    max_tokens: int | None
    temperature: float
    top_p: float

    @classmethod
    def of(cls, sampling: SamplingParams) -> SamplingFacts:
        return cls(
            n=sampling.n,
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHeaders:
    """The headers by which a client names the trace of its request (W3C)."""

    traceparent: str
    tracestate: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRequest:
    """The facts about a request.

    Attributes:
      id: of the answer's header.
      key: the name of the client's key; None if the server has none.
      path: as the client has sent it.
      route: the path in the table of routes; None if there is no such path.
      status: None if no head was sent, and for what runs in the background.
      arrived_at, ended_at: in seconds of trio.current_time().
      spans: its phases in order; one may come twice.
      phase: that in which it ended; None if it was answered.
      tokens: None if no prompt has reached the engine.
      finish_reasons: the number of sequences that ended, by reason.
      error: the type of the error, as in the answer.
      model: the served model; None if it was not loaded.
      sampling: None if nothing was generated.
      trace: None if the client has named no trace.
    """

    id: str
    key: str | None
    method: str
    path: str
    route: str | None
    status: int | None
    arrived_at: float
    ended_at: float
    spans: tuple[Span, ...]
    phase: Phase | None
    tokens: TokenCounts | None
    finish_reasons: Mapping[FinishReason, int]
    error: str | None
    ending: Ending
    model: str | None
    sampling: SamplingFacts | None
    trace: TraceHeaders | None

    @property
    def seconds(self) -> float:
        return self.ended_at - self.arrived_at


class RequestSink(Protocol):
    """Keeps the facts that it needs of ended requests."""

    def start(self) -> None:
        """Begin to work, in a thread."""

    def take(self, ended: EndedRequest) -> None:
        """Take a request; never waits."""

    def close(self) -> None:
        """End begun work, and wait for that for a few seconds at most."""
