"""The structs of answers, in the shapes that clients of OpenAI and vLLM read.

Fields without a default are always sent, even if they are null, because OpenAI sends them.
Fields whose default is UNSET are only sent if they have a value.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from ...http.record.usage import (
    RequestMetrics,
    Usage,
)


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One of the most likely tokens at a position."""

    token: str
    logprob: float
    bytes: tuple[int, ...]


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The sampled token of a position, and its alternatives."""

    token: str
    logprob: float
    bytes: tuple[int, ...]
    top_logprobs: tuple[TopLogprob, ...]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log probabilities in chat's form."""

    content: tuple[TokenLogprob, ...]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log probabilities in the legacy form: lists side by side."""

    text_offset: tuple[int, ...]
    token_logprobs: tuple[float | None, ...]
    tokens: tuple[str, ...]
    top_logprobs: tuple[dict[str, float] | None, ...]


class PromptLogprob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A candidate for one position of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


# One for each token of the prompt. The first is None, because nothing predicted it.
PromptLogprobs = tuple[dict[str, PromptLogprob] | None, ...]


class AnswerFunction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The function that a model calls; `arguments` is JSON."""

    name: str
    arguments: str


class AnswerToolCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool call of a model."""

    id: str
    type: Literal["function"] = "function"
    function: AnswerFunction


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message of the assistant.

    Args:
      content: null if there are calls alone.
      reasoning: the text before the answer; null if there is none. It is not sent if the
        server does not split it off, or the client does not want it.
    """

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning: str | UnsetType | None = UNSET
    tool_calls: tuple[AnswerToolCall, ...] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to a chat."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: tuple[int, ...] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /v1/chat/completions.

    `prompt_logprobs` and `kv_transfer_params` are fields of vLLM that its clients read
    without asking for them; so they are null.
    """

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: tuple[ChatChoice, ...]
    usage: Usage
    metrics: RequestMetrics | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | None = None
    kv_transfer_params: None = None
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


class FunctionChunk(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The part of a called function in one chunk; the first one has the name."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallChunk(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The part of a tool call in one chunk; the first one has the id and the type."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionChunk


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The text that a chunk adds to the content, to the reasoning or to a tool call."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallChunk, ...] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a choice in one chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType = UNSET
    token_ids: tuple[int, ...] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a streamed chat."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: tuple[ChatChunkChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    metrics: RequestMetrics | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One continuation of a prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /v1/completions; for kv_transfer_params see ChatCompletion."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: tuple[CompletionChoice, ...]
    usage: Usage
    metrics: RequestMetrics | UnsetType = UNSET
    kv_transfer_params: None = None


class CompletionChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a continuation in one chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType = UNSET
    token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


class CompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a streamed completion."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: tuple[CompletionChunkChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    metrics: RequestMetrics | UnsetType = UNSET
