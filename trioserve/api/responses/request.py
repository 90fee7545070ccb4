"""The request of POST /v1/responses, and the chat that answers it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter, NotSupported, list_choices
from ...render import ReasoningEffort
from ...types.structured import StructuredOutput
from ..chat.request import ChatRequest
from ..decode.fields import Int64
from ..decode.values import has_value
from ..shared.messages import Message
from ..shared.requests import SampledRequest
from ..shared.structured import JsonSchemaFormat, ResponseFormat
from ..shared.tools import drop_nulls
from .items import MESSAGE, InputItem, InputItems, check_items
from .tools import FlatAllowedTools, FlatNamedTool, FlatToolChoice, name_for_model

FORMAT: Final = "text.format"
_FORMAT_TYPES: Final = ("text", "json_object", "json_schema")

# These change nothing: templates have no place for them.
_VERBOSITIES: Final = ("low", "medium", "high")
_SUMMARIES: Final = ("auto", "concise", "detailed", "none")

LOGPROBS: Final = "message.output_text.logprobs"

# The reports that every answer has anyway. Reasoning is never encrypted, so that clients
# can send it back as it is.
_ALWAYS_INCLUDED: Final = (
    "message.input_image.image_url",
    "reasoning.encrypted_content",
)

# OpenAI's API has seven such reports.
_MAX_INCLUDED: Final = 64

# The limits of OpenAI's API.
_MAX_PAIRS: Final = 16
_MAX_KEY_CHARACTERS: Final = 64
_MAX_VALUE_CHARACTERS: Final = 512

Truncation = Literal["disabled", "auto"]

Label = Annotated[str, Meta(max_length=_MAX_VALUE_CHARACTERS)]


class TextFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the text of an answer.

    Args:
      name, description: labels that the answer repeats.
      schema: a JSON schema, which a renderer worker compiles. The type json_object takes
        it, too.
      strict: the answer matches the schema in any case, so this changes nothing.
    """

    type: str = "text"
    name: str | None = None
    description: str | None = None
    schema: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the text of an answer."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningConfig(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The options of reasoning.

    Args:
      summary: changes nothing. No summaries are written; an answer has the reasoning
        itself.
    """

    effort: ReasoningEffort | None = None
    summary: str | None = None


class ResponseRequest(SampledRequest, frozen=True, kw_only=True):
    """The body of POST /v1/responses.

    Args:
      store: keep the response for later requests. True by default, as OpenAI has it.
      background: answer at once, and generate while no client waits.
      max_tool_calls: a limit on calls of the server's own tools, which has none.
    """

    input: str | InputItems | None = None
    instructions: str | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: Label | None = None
    max_output_tokens: Int64 | None = None
    max_tool_calls: Int64 | None = None
    include: Annotated[tuple[str, ...], Meta(max_length=_MAX_INCLUDED)] | None = None
    top_logprobs: Int64 | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=_MAX_PAIRS)] | None = None
    truncation: Truncation | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    thinking_token_budget: Int64 | None = None
    chat_template_kwargs: dict[str, object] | None = None
    tools: tuple[dict[str, object], ...] | None = None
    tool_choice: FlatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: Label | None = None
    safety_identifier: Label | None = None

    def __post_init__(self) -> None:
        if self.input is None:
            raise InvalidParameter("input", "is required")
        if not isinstance(self.input, str):
            check_items(self.input)
        if self.background and self.store is False:
            raise InvalidParameter("background", "needs store=true")
        self._check_include()
        _check_metadata(self.metadata or {})
        _check_text(self.text)
        _check_reasoning(self.reasoning)

    def _check_include(self) -> None:
        for index, name in enumerate(self.include or ()):
            if name not in (LOGPROBS, *_ALWAYS_INCLUDED):
                raise NotSupported(
                    f"include[{index}]",
                    list_choices((LOGPROBS, *_ALWAYS_INCLUDED), name),
                )
        if self.top_logprobs and not self.shows_logprobs:
            raise InvalidParameter(
                "top_logprobs", f"is only taken with {LOGPROBS} in include"
            )

    @property
    def shows_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    @property
    def items(self) -> tuple[InputItem, ...]:
        """The input; a text is a message of the user."""
        if isinstance(self.input, str):
            return (InputItem(type=MESSAGE, role="user", content=self.input),)
        return self.input or ()


class _AnsweringChat(ChatRequest, frozen=True, kw_only=True):
    """The chat that answers a response."""

    @property
    def structure(self) -> StructuredOutput | None:
        """The form that the answer must have; its errors name the response's field."""
        structure = super().structure
        if structure is None:
            return None
        return replace(structure, param=FORMAT)


def to_chat(request: ResponseRequest, messages: tuple[Message, ...]) -> ChatRequest:
    """Return the chat that gives the same answer.

    Raises:
      RequestError: as a chat; inside of response_names.naming_fields it names the fields
        of the response.
    """
    choice = request.tool_choice
    shared = {name: getattr(request, name) for name in SampledRequest.__struct_fields__}
    return _AnsweringChat(
        **shared,
        messages=messages,
        max_completion_tokens=request.max_output_tokens,
        logprobs=request.shows_logprobs,
        top_logprobs=request.top_logprobs,
        truncate_prompt_tokens=-1 if request.truncation == "auto" else None,
        thinking_token_budget=request.thinking_token_budget,
        chat_template_kwargs=request.chat_template_kwargs,
        reasoning_effort=request.reasoning.effort if request.reasoning else None,
        tools=tuple(map(_to_chat_tool, request.tools or ())) or None,
        tool_choice=(
            choice.to_chat_choice()
            if isinstance(choice, (FlatNamedTool, FlatAllowedTools))
            else choice
        ),
        parallel_tool_calls=request.parallel_tool_calls,
        response_format=_to_response_format(request.text),
    )


def _to_response_format(text: TextConfig | None) -> ResponseFormat | None:
    if text is None or text.format is None:
        return None
    wanted = text.format
    if wanted.type != "json_schema":
        return ResponseFormat(type=wanted.type, schema=wanted.schema)
    schema = JsonSchemaFormat(
        name=wanted.name, schema=wanted.schema, strict=wanted.strict
    )
    return ResponseFormat(type=wanted.type, json_schema=schema)


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > _MAX_PAIRS:
        raise InvalidParameter("metadata", f"at most {_MAX_PAIRS} pairs are allowed")
    for key, value in metadata.items():
        if len(key) > _MAX_KEY_CHARACTERS or len(value) > _MAX_VALUE_CHARACTERS:
            raise InvalidParameter(
                "metadata",
                f"keys have at most {_MAX_KEY_CHARACTERS} characters, and values "
                f"{_MAX_VALUE_CHARACTERS}",
            )


def _check_text(text: TextConfig | None) -> None:
    if text is None:
        return
    if text.format is not None:
        _check_format(text.format)
    if text.verbosity not in (None, *_VERBOSITIES):
        raise InvalidParameter(
            "text.verbosity", list_choices(_VERBOSITIES, text.verbosity)
        )


def _check_format(wanted: TextFormat) -> None:
    if wanted.type not in _FORMAT_TYPES:
        raise NotSupported(f"{FORMAT}.type", list_choices(_FORMAT_TYPES, wanted.type))
    if wanted.type == "json_schema" and not has_value(wanted.schema):
        raise InvalidParameter(f"{FORMAT}.schema", "is required")
    if wanted.type == "text" and has_value(wanted.schema):
        raise InvalidParameter(f"{FORMAT}.schema", "is for the type json_schema")


def _check_reasoning(reasoning: ReasoningConfig | None) -> None:
    if reasoning is None:
        return
    if reasoning.summary not in (None, *_SUMMARIES):
        raise InvalidParameter(
            "reasoning.summary", list_choices(_SUMMARIES, reasoning.summary)
        )


def _to_chat_tool(tool: dict[str, object]) -> dict[str, object]:
    outer = ("type", "namespace")
    function = {name: value for name, value in tool.items() if name not in outer}
    # Invariant: decode_flat_tools has checked the names.
    function["name"] = name_for_model(str(tool["name"]), tool.get("namespace"))
    return {"type": "function", "function": drop_nulls(function)}
