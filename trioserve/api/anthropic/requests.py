"""Requests of Anthropic's API: one frozen struct for each endpoint.

Ranges of sampling numbers are checked as in chats, after `anthropic_chat` has made a
chat of the request.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter, NotSupported, list_choices
from ...frontend import MAX_STOP_STRINGS
from ...render import ReasoningEffort
from ..decode.errors import explain
from ..decode.fields import CacheSalt, Int64, ModelRequest, Name, Seconds, StopString
from ..shared.structured import JsonSchemaFormat, ResponseFormat
from ..shared.tools import (
    NamedFunction,
    NamedTool,
    ToolChoice,
    decode_any_tools,
    list_known,
)
from .turns import System, Turns, check_conversation

_CHOICES: Final = ("auto", "any", "tool", "none")
_THINKING_TYPES: Final = ("enabled", "disabled", "adaptive")
_DISPLAYS: Final = ("summarized", "omitted")


class ClientTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the client runs.

    Args:
      type: custom or null. All other types are tools of the provider, or tools whose
        schema only the provider's models know.
      input_schema: a JSON schema.
      strict, defer_loading, allowed_callers, input_examples: taken only with the value that
        changes nothing.
    """

    name: Name
    input_schema: dict[str, object]
    type: str | None = None
    description: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: tuple[str, ...] | None = None
    input_examples: tuple[dict[str, object], ...] | None = None

    def check(self, path: str) -> None:
        """Refuse a tool with an option that the server does not have.

        Raises:
          NotSupported
        """
        if self.strict:
            raise NotSupported(f"{path}.strict", "calls are not checked by schemas")
        if self.defer_loading:
            raise NotSupported(f"{path}.defer_loading")
        if self.allowed_callers not in (None, ("direct",)):
            raise NotSupported(f"{path}.allowed_callers", "must be direct alone")
        if self.input_examples:
            raise NotSupported(f"{path}.input_examples", "add them to the description")

    def to_function(self) -> dict[str, object]:
        """Return the tool in the form of chats."""
        function: dict[str, object] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.input_schema
        return {"type": "function", "function": function}


class ToolPreference(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of tools: the model may, must or must not call them.

    Args:
      type: auto, any, tool or none.
      name: the tool that the model must call.
      disable_parallel_tool_use: at most one call is wanted.
    """

    type: str
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None

    def __post_init__(self) -> None:
        if self.type not in _CHOICES:
            raise InvalidParameter(
                "tool_choice.type", list_choices(_CHOICES, self.type)
            )
        if (self.type == "tool") != (self.name is not None):
            raise InvalidParameter(
                "tool_choice.name", "is required for the type tool, and only for it"
            )

    def to_chat_choice(self) -> ToolChoice:
        """Return the same in the words of chats."""
        match self.type:
            case "none" | "auto":
                return self.type
            case "any":
                return "required"
        assert self.name is not None, "a tool has a name"
        return NamedTool(function=NamedFunction(name=self.name))


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the answer.

    Args:
      type: json_schema.
      schema: stays bytes, as in chats.
    """

    type: str
    schema: msgspec.Raw


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The effort and the form of the answer.

    Args:
      effort: as reasoning_effort of chats.
    """

    effort: ReasoningEffort | None = None
    format: OutputFormat | None = None

    def __post_init__(self) -> None:
        if self.format is not None and self.format.type != "json_schema":
            raise InvalidParameter("output_config.format.type", "must be json_schema")

    def to_response_format(self) -> ResponseFormat | None:
        """Return the form in the words of chats."""
        if self.format is None:
            return None
        schema = JsonSchemaFormat(schema=self.format.schema)
        return ResponseFormat(type="json_schema", json_schema=schema)


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """The reasoning of the model before its answer: on or off, and its length.

    Args:
      type: enabled, disabled or adaptive.
      budget_tokens: the most tokens of reasoning; only with enabled.
      display: whether the answer shows the reasoning (summarized, the default), or leaves
        its text out (omitted). The server never shortens it.
    """

    type: str
    budget_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    display: str | None = None

    def __post_init__(self) -> None:
        if self.type not in _THINKING_TYPES:
            raise InvalidParameter(
                "thinking.type", list_choices(_THINKING_TYPES, self.type)
            )
        if self.display not in (None, *_DISPLAYS):
            raise InvalidParameter(
                "thinking.display", list_choices(_DISPLAYS, self.display)
            )
        if (self.type == "enabled") != (self.budget_tokens is not None):
            reason = "is required" if self.type == "enabled" else "is for enabled alone"
            raise InvalidParameter("thinking.budget_tokens", reason)


class ConversationRequest(ModelRequest, frozen=True, kw_only=True):
    """The fields that are a part of the prompt."""

    messages: Turns
    system: System | None = None
    tools: tuple[ClientTool, ...] | None = None
    tool_choice: ToolPreference | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, object] | None = None

    def __post_init__(self) -> None:
        check_conversation(self.system, self.messages)


class CountTokensRequest(ConversationRequest, frozen=True, kw_only=True):
    """The body of POST /v1/messages/count_tokens."""


class MessagesRequest(ConversationRequest, frozen=True, kw_only=True):
    """The body of POST /v1/messages."""

    max_tokens: Int64
    stop_sequences: (
        Annotated[tuple[StopString, ...], Meta(max_length=MAX_STOP_STRINGS)] | None
    ) = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: Int64 | None = None
    top_p: float | None = None
    cache_salt: CacheSalt | None = None
    max_queue_seconds: Seconds | None = None


def decode_client_tools(
    name: str, raw: msgspec.Raw, max_tokens: int, *, ignores_unknown: bool = False
) -> tuple[ClientTool, ...] | None:
    """Decode the tools of a request.

    Args:
      ignores_unknown: whether tools that are not the client's own are left out.

    Raises:
      InvalidParameter: a tool lacks a field, or the tools are too large or too deep.
      NotSupported: a tool is one of the provider's, or has an option that the server does
        not have.
    """
    tools = list_known(
        name,
        decode_any_tools(name, raw),
        (None, "custom"),
        ignores_unknown=ignores_unknown,
    )
    return tuple(itertools.starmap(_read_tool, tools)) or None


def _read_tool(path: str, tool: dict[str, object]) -> ClientTool:
    try:
        typed = msgspec.convert(tool, ClientTool)
    except msgspec.ValidationError as error:
        raise explain(error, ClientTool, path) from None
    typed.check(path)
    return typed
