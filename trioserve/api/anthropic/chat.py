"""From a request of Anthropic's API to the chat that the server answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from ..chat.request import ChatRequest
from ..shared.generation import renaming
from ..shared.tools import flatten_tool_path
from .requests import ConversationRequest, MessagesRequest, Thinking
from .turn_mappings import TurnMappings

# The names of fields that are called otherwise in chats, for errors.
_CLIENT_NAMES: Final[Mapping[str, str]] = {
    "response_format.json_schema": "output_config.format.schema",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "reasoning_effort": "output_config.effort",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
    "tool_choice.function.name": "tool_choice.name",
}


def to_chat_request(
    request: ConversationRequest, *, splits_reasoning: bool
) -> ChatRequest:
    """Make a chat of a request. It has no messages; TurnMappings has them.

    Args:
      splits_reasoning: the server separates reasoning from answers, so that a budget can
        limit it. Otherwise there is none: agents send a budget to every model.

    Raises:
      RequestError: the chat is refused; `explain_fields` changes the names in its message.
    """
    choice, output = request.tool_choice, request.output_config
    fields: dict[str, Any] = {
        "model": request.model,
        "messages": (),
        "tools": tuple(tool.to_function() for tool in request.tools or ()) or None,
        "tool_choice": None if choice is None else choice.to_chat_choice(),
        # A model goes on where the last turn ends, if that is its own.
        "continue_final_message": request.messages[-1].role == "assistant",
        "response_format": None if output is None else output.to_response_format(),
        "reasoning_effort": None if output is None else output.effort,
        "chat_template_kwargs": request.chat_template_kwargs,
        **_read_thinking(request.thinking, splits_reasoning),
    }
    if choice is not None and choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    if isinstance(request, MessagesRequest):
        fields |= {
            "max_tokens": request.max_tokens,
            "stop": request.stop_sequences,
            "stream": request.stream,
            "temperature": request.temperature,
            "top_k": request.top_k,
            "top_p": request.top_p,
            "cache_salt": request.cache_salt,
            "max_queue_seconds": request.max_queue_seconds,
        }
    return ChatRequest(**fields)


def _read_thinking(thinking: Thinking | None, splits_reasoning: bool) -> dict[str, Any]:
    if thinking is None:
        return {}
    is_disabled = thinking.type == "disabled"
    fields: dict[str, Any] = {"include_reasoning": thinking.display != "omitted"}
    if not splits_reasoning:
        # Only the template can switch it off.
        return fields | ({"reasoning_effort": "none"} if is_disabled else {})
    budget = 0 if is_disabled else thinking.budget_tokens
    return fields | {"thinking_token_budget": budget}


def explain_fields(
    turns: TurnMappings | None = None,
) -> AbstractContextManager[None]:
    """Name fields as Anthropic's API does in errors that leave the block.

    Args:
      turns: finds the blocks of messages; None if the block does not read the messages.
    """

    def find_name(name: str) -> str:
        sent_as = flatten_tool_path(_CLIENT_NAMES.get(name, name)).replace(
            "].parameters", "].input_schema", 1
        )
        return sent_as if turns is None else turns.locate(sent_as)

    return renaming(find_name)
