"""A request that has ended, as the request log and traces show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from ...types.output import FinishReason
from ...types.sampling import SamplingParams
from .progress import Phase, Span
from .usage import Usage

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
