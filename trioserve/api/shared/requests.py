"""The fields that requests to models that generate have in common.

These structs check types, lengths, and rules between fields. The ranges of sampling
numbers have one table, types.sampling.SAMPLING_BOUNDS; `sampling.to_sampling` applies it.
Fields are nullable where OpenAI's are. Null means the same as no field, and the properties
return the default then.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter
from ...frontend import MAX_STOP_STRINGS, TextParams
from ...types.sampling import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS_ENTRIES,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_STOP_TOKEN_IDS,
    SamplingParams,
)
from ...types.structured import StructuredOutput
from ..decode.fields import (
    CacheSalt,
    Int64,
    ModelRequest,
    RequestIdText,
    Seconds,
    Side,
    StopString,
    TokenId,
)
from ..decode.values import begins_with, decode_free_form
from .structured import Choices, ResponseFormat, StructuredOutputs, find_structure

# Plug-ins need a few flags.
MAX_LOGITS_PROCESSORS_BYTES: Final = 16_384


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The reports of a stream besides the text.

    Args:
      include_usage: a last chunk, without choices, has the token counts.
      continuous_usage_stats: every chunk with a choice has the token counts so far.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class RepetitionFields(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's field: the pattern that ends an answer if it is repeated."""

    max_pattern_size: Int64 | None = None
    min_pattern_size: Int64 | None = None
    min_count: Int64 | None = None


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
    repetition_detection: RepetitionFields | None = None
    logit_bias: (
        Annotated[dict[str, float], Meta(max_length=MAX_LOGIT_BIAS_ENTRIES)] | None
    ) = None
    min_tokens: Int64 | None = None
    ignore_eos: bool | None = None
    stop: (
        StopString
        | Annotated[tuple[StopString, ...], Meta(max_length=MAX_STOP_STRINGS)]
        | None
    ) = None
    stop_token_ids: (
        Annotated[tuple[TokenId, ...], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None
    ) = None
    allowed_token_ids: (
        Annotated[
            tuple[TokenId, ...], Meta(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS)
        ]
        | None
    ) = None
    logits_processors: dict[str, dict[str, object] | None] | None = None
    bad_words: (
        Annotated[tuple[StopString, ...], Meta(max_length=MAX_BAD_WORDS // 2)] | None
    ) = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: Int64 | None = None
    max_queue_seconds: Seconds | None = None
    cache_salt: CacheSalt | None = None
    user: str | None = None


class GenerationRequest(SampledRequest, frozen=True, kw_only=True, dict=True):
    """The fields that chats and plain completions have in common.

    Attributes:
      splits_reasoning: reasoning is separated from the answer, if the server can do that.
    """

    splits_reasoning: ClassVar[bool] = False

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
    guided_choice: Choices | None = None
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
        # A mistake is found now; the parameters are kept.
        _ = self.text_params

    @cached_property
    def structure(self) -> StructuredOutput | None:
        """The form that the answer must have."""
        sent = (
            self.response_format,
            self.structured_outputs,
            self.guided_json,
            self.guided_regex,
            self.guided_choice,
            self.guided_grammar,
        )
        # Most requests have none of them.
        return find_structure(*sent) if sent.count(None) < len(sent) else None

    def take_sampling(self, values: dict[str, Any]) -> None:
        """Add the arguments of SamplingParams that have another name or default here."""

    def check_sampling(self, sampling: SamplingParams) -> None:
        """Refuse parameters that this kind of request does not take.

        Raises:
          InvalidParameter: as SamplingParams.
        """
        if sampling.max_tokens == 0:
            raise InvalidParameter("max_tokens", "must be at least 1, got 0")

    def name_sampling(self, name: str) -> str:
        """Return the field of the request behind a field of SamplingParams."""
        return name

    @cached_property
    def text_params(self) -> TextParams:
        """The parameters of the text of an answer."""
        return self.make_text_params()

    def make_text_params(self, **others: Any) -> TextParams:
        """Make them from the fields; raises as TextParams.

        Args:
          others: parameters that other requests do not have.
        """
        return TextParams(
            stop=self.stop_strings,
            include_stop_str_in_output=bool(self.include_stop_str_in_output),
            skip_special_tokens=self.skips_special_tokens,
            structured=self.structure,
            **others,
        )

    @property
    def shown_tools(self) -> tuple[dict[str, object], ...]:
        """The tools that the model sees."""
        return ()

    @property
    def adds_special_tokens(self) -> bool:
        """True if the tokenizer adds special tokens; by default it does."""
        return self.add_special_tokens is not False

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The strings that end a text; none by default."""
        if isinstance(self.stop, str):
            return (self.stop,)
        return self.stop or ()

    @property
    def skips_special_tokens(self) -> bool:
        """True if the text omits special tokens; by default it does."""
        return self.skip_special_tokens is not False

    @property
    def reports_usage(self) -> bool:
        """True if the last chunk of a stream has the token counts."""
        options = self.stream_options
        if options is None:
            return False
        # The default of older versions of vLLM, on which clients rely.
        if options.include_usage is None:
            return bool(options.continuous_usage_stats)
        return options.include_usage

    @property
    def reports_usage_continuously(self) -> bool:
        """True if every chunk of a stream has the token counts so far."""
        options = self.stream_options
        return options is not None and bool(options.continuous_usage_stats)


def decode_processors(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> dict[str, dict[str, object] | None] | None:
    """Decode the names of the logits processors and their arguments.

    Raises:
      InvalidParameter: the value is not an object of objects, or is too large or too
        deep.
    """
    # The field was a list in old versions of vLLM, and clients send an empty one.
    if begins_with(raw, b"[") and not bytes(raw)[1:-1].strip():
        return None
    named: dict[str, dict[str, object] | None] | None = decode_free_form(
        name,
        raw,
        dict[str, dict[str, object] | None] | None,
        MAX_LOGITS_PROCESSORS_BYTES,
    )
    return named
