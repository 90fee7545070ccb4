"""Reads the replies of requests for text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
import json
from typing import Any

from .replies import Reply


class Wrong(Exception):
    """Raised when a reply is not as it must be."""


def claim(is_true: bool, otherwise: str) -> None:
    """Raise Wrong unless something is true."""
    if not is_true:
        raise Wrong(otherwise)


@dataclass(kw_only=True)
class Choice:
    """One sequence of an answer."""

    text: str = ""
    finish_reason: str | None = None


@dataclass(kw_only=True)
class Answer:
    """The content of a reply.

    Attributes:
      error: the status in an error, of the answer or of an event.
      is_done: a stream has ended with [DONE].
    """

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    error: int | None = None
    is_done: bool = False


def read_answer(reply: Reply, *, is_stream: bool) -> Answer:
    """Read an answer, or the part of it that came.

    Raises:
      Wrong
    """
    answer = Answer()
    if reply.status == 200 and is_stream:
        _read_events(reply.body, answer)
    elif reply.status is not None and reply.is_whole:
        data = json.loads(reply.body)
        if reply.status == 200:
            _read_whole(data, answer)
        else:
            answer.error = read_error(reply)
    return answer


def read_error(reply: Reply) -> int:
    """Read an answer that is an error.

    Raises:
      Wrong
    """
    code: int = json.loads(reply.body)["error"]["code"]
    claim(code == reply.status, "the status is another one")
    return code


def _read_whole(data: Any, answer: Answer) -> None:
    for choice in data["choices"]:
        message = choice.get("message")
        text = choice["text"] if message is None else message["content"]
        answer.choices[choice["index"]] = Choice(
            text=text or "", finish_reason=choice["finish_reason"]
        )
    answer.usage = data["usage"]


def _read_events(body: bytes, answer: Answer) -> None:
    for event in split_events(body):
        claim(not answer.is_done, "an event comes behind [DONE]")
        claim(
            answer.error is None or event == b"[DONE]", "an event comes behind an error"
        )
        if event == b"[DONE]":
            answer.is_done = True
            continue
        data = json.loads(event)
        if "error" in data:
            answer.error = data["error"]["code"]
            continue
        for choice in data["choices"]:
            _read_part(choice, answer)
        answer.usage = data.get("usage") or answer.usage


def _read_part(data: Any, answer: Answer) -> None:
    choice = answer.choices.setdefault(data["index"], Choice())
    claim(choice.finish_reason is None, "text comes behind the end of a choice")
    delta = data.get("delta")
    text = data["text"] if delta is None else delta.get("content")
    choice.text += text or ""
    choice.finish_reason = data["finish_reason"]


def split_events(body: bytes) -> Iterator[bytes]:
    """Return the data of each event; ids must count up.

    Raises:
      Wrong
    """
    stream_id = None
    # The last one may not be whole.
    for number, event in enumerate(_drop_comments(body)):
        if event.startswith(b"id: "):
            event_id, _, event = event.partition(b"\n")
            if not number:
                stream_id = event_id.rpartition(b"-")[0]
            claim(
                event_id == b"%s-%d" % (stream_id, number), f"{event_id!r} is missing"
            )
        claim(event.startswith(b"data: "), f"{event!r} is not an event")
        yield event.removeprefix(b"data: ")


def _drop_comments(body: bytes) -> Iterator[bytes]:
    for event in body.split(b"\n\n")[:-1]:
        # Comments, which keep proxies from closing a silent stream, are lines of their own.
        while event.startswith(b":"):
            event = event.partition(b"\n")[2]
        if event:
            yield event
