"""The structs of answers, in the shapes that clients of OpenAI and vLLM read.

Fields without a default are always sent, even if they are null, because OpenAI sends them.
Fields whose default is UNSET are only sent if they have a value.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ...errors import TrioserveError
from ...types.model_info import ModelInfo


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of a prompt's tokens."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The kinds of an answer's tokens."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET

    @classmethod
    def of(
        cls,
        *,
        num_prompt_tokens: int,
        num_output_tokens: int,
        num_cached_tokens: int,
        num_reasoning_tokens: int | None = None,
    ) -> Usage:
        """Make the usage; without reasoning tokens if the server does not split them off."""
        return cls(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=num_output_tokens,
            total_tokens=num_prompt_tokens + num_output_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached_tokens),
            completion_tokens_details=(
                UNSET
                if num_reasoning_tokens is None
                else CompletionTokensDetails(reasoning_tokens=num_reasoning_tokens)
            ),
        )

    def without(self, num_output_tokens: int) -> Usage:
        """Return the usage before the last output tokens."""
        return msgspec.structs.replace(
            self,
            completion_tokens=self.completion_tokens - num_output_tokens,
            total_tokens=self.total_tokens - num_output_tokens,
        )


class RequestMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The times of a request, with vLLM's names; null if there is none.

    Args:
      queue_time_ms: the wait in the engine's queue.
      time_to_first_token_ms: from the first step to the first token.
      generation_time_ms: from the first token to the last one.
      mean_itl_ms: from one token of a sequence to the next.
      tokens_per_second: all tokens, by the time from the first step to the last token.
    """

    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    mean_itl_ms: float | None = None
    tokens_per_second: float | None = None


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


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["trioserve"] = "trioserve"
    root: str
    parent: None = None
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: tuple[ModelCard, ...]


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...] | None = None


class Detokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /detokenize."""

    prompt: str


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /tokenizer_info: fields of a tokenizer_config.json.

    Special tokens that the model does not have are left out.
    """

    tokenizer_class: str
    bos_token: str | UnsetType = UNSET
    eos_token: str | UnsetType = UNSET
    unk_token: str | UnsetType = UNSET
    pad_token: str | UnsetType = UNSET
    sep_token: str | UnsetType = UNSET
    cls_token: str | UnsetType = UNSET
    mask_token: str | UnsetType = UNSET
    extra_special_tokens: tuple[str, ...]
    padding_side: str
    model_max_length: int
    chat_template: str | None


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /version."""

    version: str


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The description of an error.

    Args:
      type: the family of the error.
      param: the field of the request that is wrong, if there is one.
      code: the HTTP status.
    """

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer with an error."""

    error: ErrorDetail

    @classmethod
    def of(cls, error: TrioserveError) -> ErrorBody:
        return cls(
            error=ErrorDetail(
                message=str(error),
                type=error.code,
                param=getattr(error, "param", None),
                code=error.status,
            )
        )


encode: Final = msgspec.json.Encoder().encode


def describe_model(info: ModelInfo, *, created: int) -> ModelCard:
    """Describe the one model that is served; `created` is in seconds since 1970."""
    return ModelCard(
        id=info.name,
        created=created,
        root=info.name,
        max_model_len=info.max_model_len,
    )


def list_models(info: ModelInfo, *, created: int) -> ModelList:
    """Describe all models that are served; see describe_model."""
    return ModelList(data=(describe_model(info, created=created),))
