"""Requests of Anthropic's API: one frozen struct for each endpoint.

Ranges of sampling numbers are checked as in chats, after `anthropic_chat` has made a
chat of the request.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter, list_choices
from ...frontend import MAX_STOP_STRINGS
from ..decode.fields import CacheSalt, Int64, ModelRequest, Seconds, StopString
from .client_tools import ClientTool, ToolPreference
from .output_config import OutputConfig
from .turns import System, Turns, check_conversation

_THINKING_TYPES: Final = ("enabled", "disabled", "adaptive")
_DISPLAYS: Final = ("summarized", "omitted")


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
