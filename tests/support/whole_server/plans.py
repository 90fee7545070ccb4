"""The acts of the clients of a history."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from trioserve.http.keys.keys import Key

# close       the connection, or the stream of HTTP/2
# reset       the connection, with all that is on its way
# half_close  nothing more is sent; HTTP/1 alone
# goaway      the connection, with a word of HTTP/2 before it
# stall       nothing is read for long
Leave = Literal["close", "reset", "half_close", "goaway", "stall"]


@dataclass(frozen=True, kw_only=True)
class KeyPlan:
    """A key of the server, or one that it does not know.

    Args:
      key: None if the server does not know the secret.
    """

    secret: str
    key: Key | None

    @property
    def line(self) -> str:
        """The line of the file with keys."""
        assert self.key is not None, "the server knows it"
        words = [self.key.name, self.secret, f"weight={self.key.weight:g}"]
        if self.key.is_admin:
            words.append("admin")
        for name in ("max_requests", "tokens_per_minute"):
            if (number := getattr(self.key, name)) is not None:
                words.append(f"{name}={number}")
        return " ".join(words)


@dataclass(frozen=True, kw_only=True)
class Break:
    """The loss of a connection in the middle of a stream, which the client takes up again.

    Args:
      after: seconds after the request, or after the connection before.
      pause: seconds without a connection.
    """

    after: float
    how: Leave
    pause: float


@dataclass(frozen=True, kw_only=True)
class RequestPlan(ABC):
    """One request of a client.

    Args:
      number: unique in its history.
      waits: seconds after the answer before, or after the client's start.
      timeout: seconds, in the header; None for none.
      leaves: how the client leaves before it has the answer; None if it stays.
      leaves_after: seconds.
      pieces: the number of parts in which the request is sent, with pauses.
      breaks: for streams that are taken up again.
    """

    number: int
    waits: float
    timeout: float | None
    leaves: Leave | None
    leaves_after: float
    pieces: int
    breaks: tuple[Break, ...] = ()

    @property
    def id(self) -> str:
        return f"request-{self.number}"

    @property
    @abstractmethod
    def path(self) -> str: ...

    @abstractmethod
    def write_body(self) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class ClientPlan:
    """A client with one connection at a time.

    Args:
      key: None on a server without keys.
      is_http2: it sends its requests side by side, otherwise one after the other.
      window: bytes that each stream of HTTP/2 takes before the client has read them.
      read_size: the most bytes that it takes at once.
      read_pause: seconds between two reads.
      capacity: bytes that its connection takes in each direction.
    """

    starts_at: float
    requests: tuple[RequestPlan, ...]
    key: KeyPlan | None = None
    is_http2: bool = False
    window: int = 65_535
    read_size: int
    read_pause: float
    capacity: int

    @property
    def is_slow(self) -> bool:
        return self.read_pause > 0


@dataclass(frozen=True, kw_only=True)
class ControlPlan:
    """A GET or a DELETE of one request, or of all that the key may see."""

    at: float
    method: Literal["GET", "DELETE"]
    request_id: str | None
    key: KeyPlan | None
