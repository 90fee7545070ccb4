"""The answers to chats, in the shapes that clients of OpenAI and vLLM read.

Fields without a default are always sent, even if they are null, because OpenAI sends them.
Fields whose default is UNSET are only sent if they have a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from ...http.record.stream_meter import StreamMeter
from ...http.record.usage import RequestMetrics, Usage
from ...types.output import FinishReason, TextDelta, ToolCallDelta
from ..shared.chunks import StreamHeader
from ..shared.logprobs import (
    ChatLogprobs,
    PromptLogprobs,
    TokenTexts,
    build_chat_logprobs,
    build_prompt_logprobs,
)
from .request import ChatRequest


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


def build_answer(
    body: ChatRequest,
    header: StreamHeader,
    meter: StreamMeter,
    texts: TokenTexts,
    completed: Sequence[TextDelta],
) -> ChatCompletion:
    """Build a whole answer."""
    return ChatCompletion(
        id=header.id,
        created=header.created,
        model=header.model,
        system_fingerprint=header.system_fingerprint,
        choices=tuple(
            _build_choice(
                body,
                whole,
                texts,
                splits_reasoning=meter.stream.splits_reasoning,
                splits_tool_calls=meter.stream.splits_tool_calls,
            )
            for whole in completed
        ),
        usage=meter.usage,
        metrics=meter.metrics if body.return_metrics else UNSET,
        prompt_logprobs=(
            None
            if body.prompt_logprobs is None
            else build_prompt_logprobs(completed[0].prompt_logprobs, texts)
        ),
        prompt_token_ids=(
            meter.prompts[0].token_ids if body.return_token_ids else UNSET
        ),
    )


def _build_choice(
    body: ChatRequest,
    whole: TextDelta,
    texts: TokenTexts,
    *,
    splits_reasoning: bool,
    splits_tool_calls: bool,
) -> ChatChoice:
    shows_reasoning = splits_reasoning and body.includes_reasoning
    calls = tuple(map(_build_call, whole.tool_calls))
    text = body.echoed_text + whole.text
    return ChatChoice(
        index=whole.index,
        message=ChatMessage(
            content=text if text or not splits_tool_calls else None,
            reasoning=(whole.reasoning or None) if shows_reasoning else UNSET,
            tool_calls=calls or UNSET,
        ),
        logprobs=make_logprobs(body, whole, texts),
        finish_reason=tell_finish_reason(whole.finish_reason, calls=bool(calls)),
        stop_reason=whole.stop_reason,
        token_ids=whole.token_ids if body.return_token_ids else UNSET,
    )


def make_logprobs(
    body: ChatRequest, delta: TextDelta, texts: TokenTexts
) -> ChatLogprobs | None:
    """Return the log probabilities of a delta, or of a whole answer, if they are asked for."""
    if not body.logprobs or not delta.logprobs:
        return None
    return build_chat_logprobs(delta.logprobs, texts)


def tell_finish_reason(reason: FinishReason | None, *, calls: bool) -> str | None:
    """Return the reason in OpenAI's words.

    Args:
      calls: the sequence has called a tool.
    """
    return "tool_calls" if calls and reason == "stop" else reason


def _build_call(call: ToolCallDelta) -> AnswerToolCall:
    return AnswerToolCall(
        id=call.id, function=AnswerFunction(name=call.name, arguments=call.arguments)
    )
