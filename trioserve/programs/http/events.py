"""Streamed answers of OpenAI's API: server-sent events, cut out of a stream of bytes."""

from __future__ import annotations

from collections.abc import Iterator
import json
from typing import Any, Final

import msgspec

from .client import RequestFailed

# A line holds a few tokens; a server with a longer one speaks something else.
_MAX_LINE: Final = 16 * 2**20


class EventsUnreadable(RequestFailed):
    """Raised when a stream has no events of this API."""

    def __init__(self) -> None:
        super().__init__("the server sends no events of OpenAI's API")


class Delta(msgspec.Struct):
    content: str | None = None
    # vLLM and trioserve say reasoning, llama-server and DeepSeek reasoning_content.
    reasoning: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct):
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    def has_text(self) -> bool:
        """Return whether there is text that a user would see; a role alone does not count."""
        if self.delta is None:
            return bool(self.text)
        return bool(
            self.delta.content or self.delta.reasoning_content or self.delta.reasoning
        )


class Usage(msgspec.Struct):
    completion_tokens: int | None = None


class Event(msgspec.Struct):
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


class EventReader:
    """Cuts a stream of bytes into events.

    Attributes:
      has_ended: the server has said that the answer is complete.
    """

    def __init__(self) -> None:
        self.has_ended = False
        self._rest = b""
        self._decoder = msgspec.json.Decoder(Event)

    def feed(self, data: bytes) -> Iterator[Event]:
        """Take the next bytes, cut anywhere, and yield the events that they complete.

        Every event of this API is one `data:` line, so blank lines, comments and other
        fields are skipped (WHATWG HTML, section 9.2.6).

        Raises:
          EventsUnreadable
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            value = line[5:].strip()
            if value == b"[DONE]":
                self.has_ended = True
                continue
            event = self._decode(value)
            if any(choice.finish_reason is not None for choice in event.choices):
                self.has_ended = True
            yield event
        if len(self._rest) > _MAX_LINE:
            raise EventsUnreadable

    def _decode(self, value: bytes) -> Event:
        try:
            return self._decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        try:
            # msgspec refuses half a character, which a server may send as an escape.
            return msgspec.convert(json.loads(value), type=Event)
        except (msgspec.ValidationError, ValueError, RecursionError):
            raise EventsUnreadable from None
