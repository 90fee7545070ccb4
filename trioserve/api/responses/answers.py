"""The structs of the Responses API: the response, and the items of its output.

The shapes come from openai.types.responses. Fields that OpenAI always sends are always
sent here, even if they are null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ...errors import DeadlineExceeded, RequestCancelled, TrioserveError
from ...http.record.usage import Usage
from ..shared.logprobs import TokenLogprob

# ResponseObject has a field with the name of the type.
Json = dict[str, object]

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal[
    "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
]


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag="output_text"):
    """The text of a message.

    Args:
      annotations: the server has no tools that could cite sources.
      logprobs: only where the client asked for them.
    """

    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningText(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning_text"):
    """The text of a reasoning."""

    text: str


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """An item with text."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: tuple[OutputText, ...] = ()


class OutputReasoning(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    """An item with the thoughts before an answer; they have no summary."""

    id: str
    status: ItemStatus
    summary: tuple[()] = ()
    content: tuple[ReasoningText, ...] = ()
    encrypted_content: None = None


class OutputCall(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    """An item with a call of a function of the client.

    Args:
      call_id: the id that the result of the call repeats.
      namespace: of the function; left out for a function outside of all.
      arguments: JSON, unless the call is incomplete.
    """

    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str = ""


OutputItem = OutputMessage | OutputReasoning | OutputCall


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of the input's tokens.

    Args:
      cache_write_tokens: nothing is charged for the prefix cache, so these are not
        counted.
    """

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The kinds of the output's tokens."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> ResponseUsage:
        details = usage.completion_tokens_details
        return cls(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(
                cached_tokens=usage.prompt_tokens_details.cached_tokens
            ),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(
                reasoning_tokens=0 if details is UNSET else details.reasoning_tokens
            ),
            total_tokens=usage.total_tokens,
        )


# OpenAI's API has the first one alone of these.
ResponseErrorCode = Literal["server_error", "deadline_exceeded", "request_cancelled"]

_ERROR_CODES: Final[Mapping[str, ResponseErrorCode]] = {
    DeadlineExceeded.code: "deadline_exceeded",
    RequestCancelled.code: "request_cancelled",
}


class ResponseError(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a response failed."""

    message: str
    code: ResponseErrorCode

    @classmethod
    def of(cls, error: TrioserveError) -> ResponseError:
        return cls(
            message=str(error), code=_ERROR_CODES.get(error.code, "server_error")
        )


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a response ended early.

    Args:
      reason: OpenAI's API knows the first one; the others are this server's own.
    """

    reason: Literal["max_output_tokens", "repetition", "deadline"]


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the text of an answer, as the client sent them."""

    format: Json
    verbosity: str | UnsetType = UNSET


class ReasoningOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of reasoning, as the client sent them."""

    effort: str | None = None
    summary: str | None = None


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /v1/responses, and a stored response.

    Args:
      created_at, completed_at: seconds since 1970.
      usage: null until the response has ended.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: tuple[OutputItem, ...] = ()
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningOptions
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: TextOptions
    tool_choice: str | Json
    tools: tuple[Json, ...]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled", "auto"]
    usage: ResponseUsage | None = None
    user: str | None


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of DELETE /v1/responses/{response_id}."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputItemList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /v1/responses/{response_id}/input_items.

    Args:
      data: the items, as they were stored.
    """

    object: Literal["list"] = "list"
    data: tuple[msgspec.Raw, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool
