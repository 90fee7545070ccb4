"""Whether the model may, must or must not call tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from ...errors import InvalidParameter
from .messages import Name, ToolType

ToolMode = Literal["none", "auto", "required"]


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The function that the model must call."""

    name: Name


class NamedTool(msgspec.Struct, frozen=True, kw_only=True):
    """The tool that the model must call."""

    type: ToolType = "function"
    function: NamedFunction


class FlatNamedTool(msgspec.Struct, frozen=True, kw_only=True):
    """The tool that the model must call, as the Responses API writes it."""

    type: ToolType = "function"
    name: Name

    def to_chat_choice(self) -> NamedTool:
        """Return the same in the words of chats."""
        return NamedTool(function=NamedFunction(name=self.name))


ToolChoice = ToolMode | NamedTool
FlatToolChoice = ToolMode | FlatNamedTool


def flatten_tool_path(param: str) -> str:
    """Name a field of a tool of a chat in APIs whose tools have no `function` in them."""
    if not param.startswith("tools["):
        return param
    return param.replace("].function.", "].", 1)


def list_forced(
    choice: ToolChoice | None, tools: Sequence[Mapping[str, object]]
) -> frozenset[str]:
    """Return the names of the tools of which the model must call one; none if it is free.

    Raises:
      InvalidParameter: the request has no tools, or none of this name.
    """
    if choice in (None, "none", "auto"):
        return frozenset()
    names = frozenset(_read_name(tool) for tool in tools)
    if not names:
        raise InvalidParameter("tool_choice", "is only taken with tools")
    if not isinstance(choice, NamedTool):
        return names
    if choice.function.name not in names:
        raise InvalidParameter(
            "tool_choice.function.name", "is not the name of one of the tools"
        )
    return frozenset({choice.function.name})


def _read_name(tool: Mapping[str, object]) -> str:
    function = tool["function"]
    # Invariant: decode_tools has checked the tools.
    assert isinstance(function, Mapping), "a tool has a function"
    return str(function["name"])
