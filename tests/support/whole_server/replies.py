"""The answer that a client got to a request, over one or several connections."""

from __future__ import annotations

from dataclasses import dataclass, field
import re

from .plans import ClientPlan, RequestPlan

_EVENT_ID = re.compile(rb"^id: (\S+)$", re.MULTILINE)


@dataclass(kw_only=True)
class Part:
    """The part of an answer that came over one connection.

    Attributes:
      sent_at: when the first byte was sent, in seconds of trio.current_time().
      began_at: when the head of the answer came.
      ended_at: when the last byte came, or the client left.
      status: None before the head.
      is_whole: the end of the answer has come.
      is_given_up: the client has closed the connection, or its stream.
    """

    sent_at: float
    began_at: float = 0.0
    ended_at: float = 0.0
    status: int | None = None
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False
    is_given_up: bool = False

    def give_up(self, now: float) -> None:
        """Note that the client has left."""
        if not self.is_given_up:
            self.is_given_up = True
            self.ended_at = now


@dataclass(kw_only=True)
class Reply:
    """All parts of the answer to a request.

    Attributes:
      parts: those behind the first belong to a stream that was taken up again.
      is_held: the server was still answering when the client had left for a while.
    """

    plan: RequestPlan
    client: ClientPlan
    parts: list[Part] = field(default_factory=list)
    is_held: bool = False

    @property
    def sent_at(self) -> float:
        return self.parts[0].sent_at

    @property
    def ended_at(self) -> float:
        return self.parts[-1].ended_at

    @property
    def status(self) -> int | None:
        return self.parts[0].status

    @property
    def is_whole(self) -> bool:
        return self.parts[-1].is_whole

    @property
    def has_left(self) -> bool:
        """True if the client has left on its own, and for good."""
        return self.parts[-1].is_given_up

    @property
    def resume_error(self) -> int | None:
        """The status with which the server refused to take the stream up again."""
        last = self.parts[-1]
        return None if len(self.parts) == 1 or last.status == 200 else last.status

    @property
    def body(self) -> bytes:
        """The body; of a stream that was taken up again, all its events."""
        first, *rest = self.parts
        streams = [first, *(part for part in rest if part.status == 200)]
        before = map(_cut_whole_events, streams[:-1])
        return b"".join([*before, bytes(streams[-1].body)])

    @property
    def last_event_id(self) -> str | None:
        """The id of the last event that has come; None if the events have no ids."""
        whole = b"".join(map(_cut_whole_events, self.parts))
        ids = _EVENT_ID.findall(whole)
        return ids[-1].decode() if ids else None


def _cut_whole_events(part: Part) -> bytes:
    """Return the events of a part without the last one, if that is not whole."""
    whole, end, _ = bytes(part.body).rpartition(b"\n\n")
    return whole + end
