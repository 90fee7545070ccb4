"""The structs of answers, events and errors in the shapes of Anthropic's API.

Source: the types of Anthropic's Python client 2.12.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ...errors import ContextLengthExceeded, NotSupported, TrioserveError
from ...http.record.usage import Usage
from ...http.wire.error_body import encode

# "deadline" and "repetition" are this server's own: Anthropic's API has nothing of the kind.
StopReason = Literal[
    "deadline",
    "end_turn",
    "max_tokens",
    "model_context_window_exceeded",
    "repetition",
    "stop_sequence",
    "tool_use",
]

# The status by which Anthropic's API says that it is overloaded, instead of 503.
_OVERLOADED: Final = 529
STATUSES: Final[Mapping[int, int]] = {503: _OVERLOADED}

# The types of errors, by status. All other errors of clients are invalid requests.
_ERROR_TYPES: Final = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    _OVERLOADED: "overloaded_error",
}


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The kinds of an answer's tokens."""

    thinking_tokens: int


class AnthropicUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tokens of a request.

    Args:
      input_tokens: tokens of the prompt that were not in the prefix cache.
      cache_creation_input_tokens: 0, because tokens are put into the cache at no cost.
    """

    input_tokens: int
    cache_creation_input_tokens: Literal[0] = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails | UnsetType = UNSET

    @classmethod
    def of(cls, usage: Usage) -> AnthropicUsage:
        num_cached = usage.prompt_tokens_details.cached_tokens
        details = usage.completion_tokens_details
        return cls(
            input_tokens=usage.prompt_tokens - num_cached,
            cache_read_input_tokens=num_cached,
            output_tokens=usage.completion_tokens,
            output_tokens_details=(
                UNSET
                if isinstance(details, UnsetType)
                else OutputTokensDetails(thinking_tokens=details.reasoning_tokens)
            ),
        )


class TextContent(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A text of an answer."""

    text: str


class ThinkingContent(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """The reasoning of an answer.

    Args:
      signature: the client sends it back. The server does not read it.
    """

    thinking: str
    signature: str


class ToolUseContent(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool; `input` is an object."""

    id: str
    name: str
    input: msgspec.Raw


Content = TextContent | ThinkingContent | ToolUseContent


class AnthropicMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /v1/messages."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: tuple[Content, ...] = ()
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: AnthropicUsage


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /v1/messages/count_tokens."""

    input_tokens: int


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event; its message has no content yet."""

    message: AnthropicMessage


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """An event without a meaning."""


class BlockStart(
    msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"
):
    """The beginning of a block, which is still empty."""

    index: int
    content_block: Content


class TextPiece(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """A piece of a text."""

    text: str


class ThinkingPiece(
    msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"
):
    """A piece of the reasoning."""

    thinking: str


class SignaturePiece(
    msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"
):
    """The signature of the reasoning, behind its last piece."""

    signature: str


class InputPiece(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """A piece of the JSON of a call's input."""

    partial_json: str


Piece = TextPiece | ThinkingPiece | SignaturePiece | InputPiece


class BlockDelta(
    msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"
):
    """The next piece of the open block."""

    index: int
    delta: Piece


class BlockStop(
    msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"
):
    """The end of the open block."""

    index: int


BlockEvent = BlockStart | BlockDelta | BlockStop


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The reason for the end of an answer."""

    stop_reason: StopReason
    stop_sequence: str | None = None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The end of the answer; the usage counts the whole request."""

    delta: Ending
    usage: AnthropicUsage


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event."""


class AnthropicErrorCode(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of an error, for clients that know what to do then."""

    error_code: str
    unsupported: tuple[str, ...]


_NO_THREADS: Final = AnthropicErrorCode(
    error_code="thread_unsupported_request", unsupported=("thread",)
)


class AnthropicErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The description of an error. The message begins with the wrong field, if any."""

    type: str
    message: str
    details: AnthropicErrorCode | UnsetType = UNSET


class AnthropicError(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """The body of an answer with an error, and the event of an error in a stream."""

    error: AnthropicErrorDetail
    request_id: str

    @classmethod
    def of(cls, error: TrioserveError, request_id: str) -> AnthropicError:
        message = str(error)
        details: AnthropicErrorCode | UnsetType = UNSET
        if isinstance(error, ContextLengthExceeded):
            # Agents look for this sentence, and then shorten the conversation.
            message = (
                f"prompt is too long: {error.num_tokens} tokens > {error.limit} maximum"
            )
        if isinstance(error, NotSupported) and error.param == "thread":
            # Anthropic's client then sends the whole conversation.
            details = _NO_THREADS
        status = STATUSES.get(error.status, error.status)
        type_ = _ERROR_TYPES.get(status, "invalid_request_error")
        detail = AnthropicErrorDetail(type=type_, message=message, details=details)
        return cls(detail, request_id)


MessageEvent = (
    MessageStart
    | Ping
    | BlockStart
    | BlockDelta
    | BlockStop
    | MessageDelta
    | MessageStop
    | AnthropicError
)


def write_event(event: MessageEvent) -> bytes:
    """Return a server-sent event. Its name repeats its type."""
    name = event.__struct_config__.tag
    return f"event: {name}\ndata: ".encode() + encode(event) + b"\n\n"
