"""Streamed answers: server-sent events, and the times of their texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import trio

from ....errors import make_line
from ....errors.error_bodies import find_reason
from ...http.client import (
    Connection,
    RequestFailed,
)


class Delta(msgspec.Struct):
    content: str | None = None
    # Servers give the text of a model's reasoning different names.
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct):
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    def has_text(self) -> bool:
        """Return whether there is text that a user would see; a role alone is none."""
        if self.delta is None:
            return bool(self.text)
        return bool(
            self.delta.content or self.delta.reasoning_content or self.delta.reasoning
        )


class Usage(msgspec.Struct):
    completion_tokens: int = 0


class Event(msgspec.Struct):
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


class EventReader:
    """Cuts a stream of bytes into events."""

    def __init__(self) -> None:
        self._rest = b""
        self._decoder = msgspec.json.Decoder(Event)
        self.is_done = False

    def feed(self, data: bytes) -> Iterator[Event]:
        """Take the next bytes, cut anywhere, and yield the events that they complete.

        Every event of this API is one `data:` line, so blank lines, comments and other
        fields are skipped (WHATWG HTML, section 9.2.6).
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            value = line[5:].strip()
            if value == b"[DONE]":
                self.is_done = True
            else:
                yield self._decoder.decode(value)


@dataclass(slots=True, kw_only=True)
class Answer:
    """The times of one request and of its texts, on trio's clock, in seconds.

    Attributes:
      repeats: the server has ended it because it repeated itself.
    """

    sent: float
    texts: list[float] = field(default_factory=list)
    ended: float = 0.0
    usage_tokens: int | None = None
    is_finished: bool = False
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
            if choice.finish_reason is not None:
                self.is_finished = True
                self.repeats |= choice.finish_reason == "repetition"

    def list_gaps(self) -> list[float]:
        """List the times between events with text."""
        return [after - before for before, after in zip(self.texts, self.texts[1:])]

    def list_paces(self) -> list[float]:
        """List the time per output token; empty with fewer than two tokens."""
        if len(self.texts) < 2 or self.num_tokens < 2:
            return []
        return [(self.texts[-1] - self.texts[0]) / (self.num_tokens - 1)]


async def stream_answer(endpoint: str, connection: Connection, body: bytes) -> Answer:
    """Send one streaming request and read it to its end.

    Raises:
      RequestFailed: the server refused it, failed, or stopped early.
    """
    path = "/v1/chat/completions" if endpoint == "chat" else "/v1/completions"
    answer = Answer(sent=trio.current_time())
    await connection.send("POST", path, body)
    events = EventReader()
    while data := await connection.read():
        now = trio.current_time()
        for event in events.feed(data):
            answer.take(event, now)
    answer.ended = trio.current_time()
    if not (events.is_done or answer.is_finished):
        raise RequestFailed("the stream ended early")
    if answer.num_tokens == 0:
        raise RequestFailed("the stream ended without a token")
    return answer
