"""Tools as the Responses API writes them: without `function` in them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..decode.fields import Name
from ..shared.tools import (
    MAX_NAMES,
    AllowedMode,
    AllowedTools,
    NamedFunction,
    NamedTool,
    ToolMode,
    ToolNames,
    check_function,
    decode_any_tools,
    decode_choice,
    list_known,
)


class FlatNamedTool(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function"
):
    """The tool that the model must call, as the Responses API writes it."""

    name: Name

    def to_chat_choice(self) -> NamedTool:
        """Return the same in the words of chats."""
        return NamedTool(function=NamedFunction(name=self.name))


class FlatAllowedTools(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="allowed_tools"
):
    """The tools that the model may call, as the Responses API writes them."""

    mode: AllowedMode
    tools: Annotated[
        tuple[FlatNamedTool, ...], Meta(min_length=1, max_length=MAX_NAMES)
    ]

    def to_chat_choice(self) -> AllowedTools:
        """Return the same in the words of chats."""
        tools = tuple(tool.to_chat_choice() for tool in self.tools)
        return AllowedTools(allowed_tools=ToolNames(mode=self.mode, tools=tools))


FlatToolChoice = ToolMode | FlatNamedTool | FlatAllowedTools


def decode_flat_tools(
    name: str, raw: msgspec.Raw, max_tokens: int, *, ignores_unknown: bool = False
) -> tuple[dict[str, object], ...] | None:
    """Decode the same as the Responses API writes it."""
    tools = []
    for path, tool in list_known(
        name,
        decode_any_tools(name, raw),
        ("function",),
        ignores_unknown=ignores_unknown,
    ):
        check_function(path, tool)
        tools.append(tool)
    return tuple(tools) or None


def decode_flat_tool_choice(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> FlatToolChoice | None:
    """Decode the same as the Responses API writes it."""
    kinds = {"function": FlatNamedTool, "allowed_tools": FlatAllowedTools}
    choice: FlatToolChoice | None = decode_choice(name, raw, kinds)
    return choice
