"""Streamed answers: server-sent events, and the times of their texts."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from ....errors import make_line
from ...http.client import Connection, RequestFailed
from ...http.events import Event, EventReader
from ...http.reasons import find_reason


@dataclass(slots=True, kw_only=True)
class BenchAnswer:
    """The times of one request and of its texts, on trio's clock, in seconds.

    Attributes:
      repeats: the server has ended it because it repeated itself.
    """

    sent: float
    texts: list[float] = field(default_factory=list)
    ended: float = 0.0
    usage_tokens: int | None = None
    repeats: bool = False

    @property
    def num_tokens(self) -> int:
        """The tokens that the server counted, or else the events with text."""
        return len(self.texts) if self.usage_tokens is None else self.usage_tokens

    def take(self, event: Event, now: float) -> None:
        """Record one event, which was read at `now`.

        Raises:
          RequestFailed: the event is an error of the server.
        """
        if event.error is not None:
            reason = find_reason(event.error) or str(event.error)
            raise RequestFailed(f"error event: {make_line(reason)}")
        if event.usage is not None:
            self.usage_tokens = event.usage.completion_tokens
        for choice in event.choices:
            if choice.has_text():
                self.texts.append(now)
            self.repeats |= choice.finish_reason == "repetition"

    def list_gaps(self) -> list[float]:
        """List the times between events with text."""
        return [after - before for before, after in zip(self.texts, self.texts[1:])]

    def list_paces(self) -> list[float]:
        """List the time per output token; empty with fewer than two tokens."""
        if len(self.texts) < 2 or self.num_tokens < 2:
            return []
        return [(self.texts[-1] - self.texts[0]) / (self.num_tokens - 1)]


async def stream_answer(
    endpoint: str, connection: Connection, body: bytes
) -> BenchAnswer:
    """Send one streaming request and read it to its end.

    Raises:
      RequestFailed: the server refused it, failed, or stopped early.
    """
    path = "/v1/chat/completions" if endpoint == "chat" else "/v1/completions"
    answer = BenchAnswer(sent=trio.current_time())
    await connection.send("POST", path, body)
    events = EventReader()
    while data := await connection.read():
        now = trio.current_time()
        for event in events.feed(data):
            answer.take(event, now)
    answer.ended = trio.current_time()
    if not events.has_ended:
        raise RequestFailed("the stream ended early")
    if answer.num_tokens == 0:
        raise RequestFailed("the stream ended without a token")
    return answer
