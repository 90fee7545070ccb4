"""The server-sent events of a streamed response.

Each event has its type as its name, too, and a number: 0, 1, 2 ... in one response.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ...errors import TrioserveError
from ...http.wire.error_body import encode
from ..shared.logprobs import TokenLogprob
from .answers import (
    OutputItem,
    OutputText,
    ReasoningText,
    ResponseError,
    ResponseErrorCode,
    ResponseObject,
)


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The field of all events besides their type."""

    sequence_number: int


class _Snapshot(ResponseEvent, frozen=True, kw_only=True):
    """A whole response."""

    response: ResponseObject


class ResponseCreated(_Snapshot, frozen=True, kw_only=True, tag="response.created"):
    """The first event."""


class ResponseQueued(_Snapshot, frozen=True, kw_only=True, tag="response.queued"):
    """The response waits for the device; only in the background."""


class ResponseInProgress(
    _Snapshot, frozen=True, kw_only=True, tag="response.in_progress"
):
    """The response is being generated."""


class ResponseCompleted(_Snapshot, frozen=True, kw_only=True, tag="response.completed"):
    """The last event of a whole answer."""


class ResponseIncomplete(
    _Snapshot, frozen=True, kw_only=True, tag="response.incomplete"
):
    """The last event of an answer that was cut off, or of a response that was cancelled.

    OpenAI has no event of its own for the second; the status of the response tells it.
    """


class ResponseFailed(_Snapshot, frozen=True, kw_only=True, tag="response.failed"):
    """The last event after an error."""


class _OfItem(ResponseEvent, frozen=True, kw_only=True):
    output_index: int
    item: OutputItem


class OutputItemAdded(
    _OfItem, frozen=True, kw_only=True, tag="response.output_item.added"
):
    """An item begins."""


class OutputItemDone(
    _OfItem, frozen=True, kw_only=True, tag="response.output_item.done"
):
    """An item has ended."""


class _InItem(ResponseEvent, frozen=True, kw_only=True):
    item_id: str
    output_index: int


class _InPart(_InItem, frozen=True, kw_only=True):
    content_index: int = 0


class ContentPartAdded(
    _InPart, frozen=True, kw_only=True, tag="response.content_part.added"
):
    """The text of an item begins."""

    part: OutputText | ReasoningText


class ContentPartDone(
    _InPart, frozen=True, kw_only=True, tag="response.content_part.done"
):
    """The text of an item has ended."""

    part: OutputText | ReasoningText


class TextAdded(_InPart, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """A piece of the text of a message."""

    delta: str
    logprobs: tuple[TokenLogprob, ...] = ()


class TextDone(_InPart, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The text of a message has ended."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningAdded(
    _InPart, frozen=True, kw_only=True, tag="response.reasoning_text.delta"
):
    """A piece of the reasoning."""

    delta: str


class ReasoningDone(
    _InPart, frozen=True, kw_only=True, tag="response.reasoning_text.done"
):
    """The reasoning has ended."""

    text: str


class ArgumentsAdded(
    _InItem, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    """A piece of the arguments of a call."""

    delta: str


class ArgumentsDone(
    _InItem, frozen=True, kw_only=True, tag="response.function_call_arguments.done"
):
    """The arguments of a call have ended."""

    name: str
    arguments: str


class StreamFailed(ResponseEvent, frozen=True, kw_only=True, tag="error"):
    """The last event of a stream that has ended before its response."""

    code: ResponseErrorCode
    message: str
    param: None = None

    @classmethod
    def of(cls, error: TrioserveError, number: int) -> StreamFailed:
        failure = ResponseError.of(error)
        return cls(sequence_number=number, code=failure.code, message=failure.message)


AnyResponseEvent = (
    ResponseCreated
    | ResponseQueued
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | TextAdded
    | TextDone
    | ReasoningAdded
    | ReasoningDone
    | ArgumentsAdded
    | ArgumentsDone
    | StreamFailed
)


def encode_event(event: ResponseEvent) -> bytes:
    """Return an event as bytes of a stream."""
    tag = event.__struct_config__.tag
    # JSON escapes line ends, so the data is one line.
    return b"event: %b\ndata: %b\n\n" % (str(tag).encode(), encode(event))


def encode_events(events: Iterable[ResponseEvent]) -> bytes:
    return b"".join(map(encode_event, events))
