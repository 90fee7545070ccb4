"""Requests to models that generate: one frozen struct for each POST endpoint.

These structs check types, lengths, and rules between fields. The ranges of sampling
numbers have one table, types.sampling.SAMPLING_BOUNDS; `sampling.to_sampling` applies it.
Fields are nullable where OpenAI's are. Null means the same as no field, and the properties
return the default then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, cast, get_args

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter, NotSupported
from ...frontend import MAX_STOP_STRING_CHARACTERS, MAX_STOP_STRINGS
from ...render import ReasoningEffort
from ...types.sampling import MAX_BAD_WORDS, MAX_LOGPROB_TOKEN_IDS
from ...types.structured import StructuredOutput
from .messages import Messages, Name, ToolType, check_messages
from .structured import (
    ResponseFormat,
    StructuredOutputs,
    find_structure,
)
from .tool_choice import (
    AllowedMode,
    NamedTool,
    ToolChoice,
    ToolMode,
    list_forced,
    list_shown,
)

# Bounds on the memory and time that one request can take. They have no source: each is
# more than clients were seen to send. vLLM has limits of the same kind
# (VLLM_MAX_STOP_STRINGS, VLLM_MAX_COMPLETION_PROMPTS).
MAX_PROMPTS: Final = 1024
MAX_CACHE_SALT_CHARACTERS: Final = 1024
MAX_CHAT_TEMPLATE_CHARACTERS: Final = 65_536

# JSON allows numbers of any length. Numbers of more than 64 bits are refused before the
# server computes with them.
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_STRING_CHARACTERS)]
ChatTemplateText = Annotated[str, Meta(max_length=MAX_CHAT_TEMPLATE_CHARACTERS)]
# Request ids become part of response ids, which clients log and put into headers. So only
# visible ASCII is allowed. The last group keeps Python's `$` from matching before a line
# end.
RequestIdText = Annotated[str, Meta(pattern=r"^[!-~]{1,128}$(?!\n)")]
REQUEST_ID_RULE: Final = "must be 1 to 128 visible ASCII characters"

Side = Literal["left", "right"]

# The values of each field with a fixed set of values. The decoder's error has no list.
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "reasoning_effort": get_args(ReasoningEffort),
    "mode": get_args(AllowedMode),
    "tool_choice": get_args(ToolMode),
    "truncation_side": get_args(Side),
    "type": get_args(ToolType),
}

# msgspec allows one array type in a union. So the type allows lists that mix strings, ids
# and lists of ids, and lazy_fields.decode_prompt refuses them.
PromptItem = (
    Annotated[str, Meta(min_length=1)]
    | TokenId
    | Annotated[tuple[TokenId, ...], Meta(min_length=1)]
)
CompletionPrompt = (
    Annotated[str, Meta(min_length=1)]
    | Annotated[tuple[PromptItem, ...], Meta(min_length=1)]
)


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The reports of a stream besides the text.

    Args:
      include_usage: a last chunk, without choices, has the token counts.
      continuous_usage_stats: every chunk with a choice has the token counts so far.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The field of all requests.

    Args:
      model: the model that the client wants; None takes the one that is served.
    """

    model: Name | None = None


class SampledRequest(ModelRequest, frozen=True, kw_only=True):
    """The fields that have one name and one meaning for all endpoints that generate."""

    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_tokens: Int64 | None = None
    ignore_eos: bool | None = None
    stop: (
        StopString
        | Annotated[tuple[StopString, ...], Meta(max_length=MAX_STOP_STRINGS)]
        | None
    ) = None
    stop_token_ids: tuple[TokenId, ...] | None = None
    allowed_token_ids: Annotated[tuple[TokenId, ...], Meta(min_length=1)] | None = None
    logits_processors: dict[str, dict[str, object] | None] | None = None
    bad_words: (
        Annotated[tuple[StopString, ...], Meta(max_length=MAX_BAD_WORDS // 2)] | None
    ) = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: Int64 | None = None
    cache_salt: (
        Annotated[str, Meta(min_length=1, max_length=MAX_CACHE_SALT_CHARACTERS)] | None
    ) = None
    user: str | None = None


class GenerationRequest(SampledRequest, frozen=True, kw_only=True):
    """The fields that chats and plain completions have in common."""

    stream_options: StreamOptions | None = None
    n: Int64 | None = None
    max_tokens: Int64 | None = None
    add_special_tokens: bool | None = None
    prompt_logprobs: Int64 | None = None
    logprob_token_ids: (
        Annotated[tuple[TokenId, ...], Meta(max_length=MAX_LOGPROB_TOKEN_IDS)] | None
    ) = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_metrics: bool | None = None
    truncate_prompt_tokens: Int64 | None = None
    truncation_side: Side | None = None
    request_id: RequestIdText | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: msgspec.Raw | None = None
    guided_regex: str | None = None
    guided_choice: tuple[str, ...] | None = None
    guided_grammar: str | None = None

    def __post_init__(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise InvalidParameter("stream_options", "is only taken with stream=true")
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidParameter("prompt_logprobs", "is not taken with stream=true")
        if self.return_metrics and self.stream and not self.reports_usage:
            raise InvalidParameter(
                "return_metrics", "needs stream_options.include_usage in a stream"
            )
        if self.truncate_prompt_tokens is not None:
            if self.truncate_prompt_tokens < -1 or self.truncate_prompt_tokens == 0:
                raise InvalidParameter(
                    "truncate_prompt_tokens", "must be -1 or at least 1"
                )
        elif self.truncation_side is not None:
            raise InvalidParameter(
                "truncation_side", "is only taken with truncate_prompt_tokens"
            )
        find_structure(self)

    @property
    def structure(self) -> StructuredOutput | None:
        """The form that the answer must have."""
        return find_structure(self)

    @property
    def adds_special_tokens(self) -> bool:
        """Whether the tokenizer adds special tokens; by default it does."""
        return self.add_special_tokens is not False

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The strings that end a text; none by default."""
        if isinstance(self.stop, str):
            return (self.stop,)
        return self.stop or ()

    @property
    def skips_special_tokens(self) -> bool:
        """Whether the text omits special tokens; by default it does."""
        return self.skip_special_tokens is not False

    @property
    def reports_usage(self) -> bool:
        """Whether the last chunk of a stream has the token counts."""
        options = self.stream_options
        if options is None:
            return False
        # The default of older versions of vLLM, on which clients rely.
        if options.include_usage is None:
            return bool(options.continuous_usage_stats)
        return options.include_usage

    @property
    def reports_usage_continuously(self) -> bool:
        """Whether every chunk of a stream has the token counts so far."""
        options = self.stream_options
        return options is not None and bool(options.continuous_usage_stats)


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """The body of POST /v1/chat/completions.

    Args:
      echo: the content of the answer begins with the last message, if that is the
        assistant's.
      tool_choice: by default the model may call all tools. `none` hides them from it, and
        `allowed_tools` hides others than its own. `required` and the name of a tool make
        it call one.
      parallel_tool_calls: False ends an answer behind its first call, and so does the name
        of a tool.
    """

    messages: Messages
    echo: bool | None = None
    max_completion_tokens: Int64 | None = None
    logprobs: bool | None = None
    top_logprobs: Int64 | None = None
    thinking_token_budget: Int64 | None = None
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: ChatTemplateText | None = None
    chat_template_kwargs: dict[str, object] | None = None
    reasoning_effort: ReasoningEffort | None = None
    tools: tuple[dict[str, object], ...] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_messages(self.messages)
        check_continuation(self.add_generation_prompt, self.continue_final_message)
        for name in ("top_logprobs", "logprob_token_ids"):
            if getattr(self, name) and not self.logprobs:
                raise InvalidParameter(name, "is only taken with logprobs=true")
        list_forced(self.tool_choice, self.tools or ())

    @property
    def shown_tools(self) -> tuple[dict[str, object], ...]:
        """The tools that the model sees."""
        return list_shown(self.tool_choice, self.tools or ())

    @property
    def echoed_text(self) -> str:
        """The text before the answer, if the client wants it."""
        last = self.messages[-1] if self.echo else None
        return last.text if last is not None and last.role == "assistant" else ""

    @property
    def takes_one_call(self) -> bool:
        """Whether the answer ends behind its first call.

        A client that names a tool expects one call of it, as OpenAI's servers answer.
        """
        return self.parallel_tool_calls is False or isinstance(
            self.tool_choice, NamedTool
        )

    @property
    def forced_tools(self) -> frozenset[str]:
        """The names of the tools of which the model must call one; none if it is free."""
        return list_forced(self.tool_choice, self.tools or ())

    @property
    def adds_generation_prompt(self) -> bool:
        """Whether the assistant's turn is opened; not where a message goes on."""
        return _adds_generation_prompt(self)

    @property
    def includes_reasoning(self) -> bool:
        """Whether the answer shows the reasoning, if the server splits it off."""
        return self.include_reasoning is not False

    @property
    def adds_special_tokens(self) -> bool:
        """Whether the tokenizer adds special tokens; by default the template does."""
        return bool(self.add_special_tokens)


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """The body of POST /v1/completions.

    Args:
      suffix: the text behind the answer, for models that fill in the middle.
    """

    prompt: CompletionPrompt | None = None
    suffix: str | None = None
    prompt_embeds: tuple[memoryview, ...] | None = None
    echo: bool | None = None
    logprobs: Int64 | None = None
    best_of: Int64 | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt_embeds:
            self._check_embeds()
        elif self.prompt is None:
            raise InvalidParameter(
                "prompt", "either prompt or prompt_embeds is required"
            )
        if self.suffix:
            self._check_suffix()
        if self.echo and self.logprob_token_ids:
            raise InvalidParameter("logprob_token_ids", "is not taken with echo")
        if self.best_of not in (None, 1 if self.n is None else self.n):
            raise NotSupported("best_of", "must be equal to n")

    def _check_embeds(self) -> None:
        """Refuse fields that need the token ids of the prompt: embeddings have none."""
        if self.echo:
            raise InvalidParameter("echo", "is not taken with prompt_embeds")
        if self.prompt_logprobs is not None:
            raise InvalidParameter("prompt_logprobs", "is not taken with prompt_embeds")

    def _check_suffix(self) -> None:
        """Refuse fields with which the gap would have no place."""
        for name in ("echo", "truncate_prompt_tokens", "prompt_embeds"):
            if getattr(self, name):
                raise InvalidParameter("suffix", f"is not taken with {name}")
        if self.id_lists:
            raise InvalidParameter("suffix", "needs prompts that are texts")

    @property
    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """The prompts of text or token ids. Prompts of embeddings come before them."""
        prompt = self.prompt
        if prompt is None:
            return ()
        if isinstance(prompt, str):
            return (prompt,)
        # Invariant: lazy_fields.decode_prompt allows items of one type only.
        if isinstance(prompt[0], int):
            return (cast(tuple[int, ...], prompt),)
        return cast(tuple[str | tuple[int, ...], ...], prompt)

    @property
    def texts(self) -> tuple[str, ...]:
        """The prompts if they are texts; else none."""
        return tuple(prompt for prompt in self.prompts if isinstance(prompt, str))

    @property
    def id_lists(self) -> tuple[tuple[int, ...], ...]:
        """The prompts if they are token ids; else none."""
        return tuple(prompt for prompt in self.prompts if isinstance(prompt, tuple))

    @property
    def num_prompts(self) -> int:
        """The number of prompts, including those of embeddings."""
        return len(self.prompt_embeds or ()) + len(self.prompts)

    @property
    def num_characters(self) -> int:
        """The length of all `prompts`, and suffixes, in characters or token ids."""
        num_suffixes = len(self.prompts) if self.suffix else 0
        return sum(map(len, self.prompts)) + num_suffixes * len(self.suffix or "")


# The fields of /tokenize that only have a meaning for conversations.
_CHAT_FIELDS: Final = (
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "tools",
)


class TokenizeRequest(ModelRequest, frozen=True, kw_only=True):
    """The body of POST /tokenize: a prompt, or messages as chat takes them."""

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: ChatTemplateText | None = None
    chat_template_kwargs: dict[str, object] | None = None
    reasoning_effort: ReasoningEffort | None = None
    tools: tuple[dict[str, object], ...] | None = None
    tool_choice: ToolChoice | None = None

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidParameter("prompt", "send either prompt or messages")
        for name in _CHAT_FIELDS:
            if self.messages is None and getattr(self, name):
                raise InvalidParameter(name, "is only taken with messages")
        check_messages(self.messages or ())
        check_continuation(self.add_generation_prompt, self.continue_final_message)

    @property
    def adds_generation_prompt(self) -> bool:
        """Whether the assistant's turn is opened; not where a message goes on."""
        return _adds_generation_prompt(self)

    @property
    def shown_tools(self) -> tuple[dict[str, object], ...]:
        """The tools that the model would see."""
        return list_shown(self.tool_choice, self.tools or ())

    @property
    def adds_special_tokens(self) -> bool:
        """Whether the tokenizer adds special tokens; by default to prompts alone."""
        if self.add_special_tokens is None:
            return self.prompt is not None
        return self.add_special_tokens


class DetokenizeRequest(ModelRequest, frozen=True, kw_only=True):
    """The body of POST /detokenize."""

    tokens: tuple[TokenId, ...]


def check_continuation(adds_prompt: bool | None, continues: bool | None) -> None:
    """Refuse a request that both opens a new turn and continues the last one.

    Raises:
      InvalidParameter: both are requested.
    """
    if adds_prompt and continues:
        raise InvalidParameter(
            "continue_final_message", "cannot be combined with add_generation_prompt"
        )


def _adds_generation_prompt(request: ChatRequest | TokenizeRequest) -> bool:
    if request.add_generation_prompt is None:
        return not request.continue_final_message
    return request.add_generation_prompt
