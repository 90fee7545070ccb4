"""Whether the model may, must or must not call tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter
from .messages import Name

# The tools of one request are bounded in bytes (free_form.py); so many have no schemas.
MAX_NAMES: Final = 4096

ToolMode = Literal["none", "auto", "required"]
AllowedMode = Literal["auto", "required"]


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The function that the model must call."""

    name: Name


class NamedTool(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function"
):
    """The tool that the model must call."""

    function: NamedFunction


class ToolNames(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of which the model may, or must, call one.

    Args:
      mode: `required` makes it call one or several.
    """

    mode: AllowedMode
    tools: Annotated[tuple[NamedTool, ...], Meta(min_length=1, max_length=MAX_NAMES)]


class AllowedTools(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="allowed_tools"
):
    """Some of the request's tools, and whether the model must call one of them."""

    allowed_tools: ToolNames


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


ToolChoice = ToolMode | NamedTool | AllowedTools
FlatToolChoice = ToolMode | FlatNamedTool | FlatAllowedTools


def flatten_tool_path(param: str) -> str:
    """Name a field of a chat's tools in APIs whose tools have no `function` in them."""
    if param.startswith("tool_choice."):
        return param.replace("allowed_tools.", "").replace("function.", "")
    if not param.startswith("tools["):
        return param
    return param.replace("].function.", "].", 1)


def list_forced(
    choice: ToolChoice | None, tools: Sequence[Mapping[str, object]]
) -> frozenset[str]:
    """Return the names of the tools of which the model must call one; none if it is free.

    Raises:
      InvalidParameter: the request has no tools, or none of a name in the choice.
    """
    if choice in (None, "none", "auto"):
        return frozenset()
    names = frozenset(_read_name(tool) for tool in tools)
    if not names:
        raise InvalidParameter("tool_choice", "is only taken with tools")
    if isinstance(choice, NamedTool):
        _check_name(choice, names, "tool_choice")
        return frozenset({choice.function.name})
    if isinstance(choice, AllowedTools):
        allowed = choice.allowed_tools
        for index, tool in enumerate(allowed.tools):
            _check_name(tool, names, f"tool_choice.allowed_tools.tools[{index}]")
        return _list_names(allowed) if allowed.mode == "required" else frozenset()
    return names


def list_shown(
    choice: ToolChoice | None, tools: tuple[dict[str, object], ...]
) -> tuple[dict[str, object], ...]:
    """Return the tools that the model sees.

    To hide the others is the only way to keep it from calling them. A model that must call
    a tool sees all of them: a grammar keeps it to the right ones, and the prefix cache
    finds its prompt.
    """
    if choice == "none":
        return ()
    if isinstance(choice, AllowedTools) and choice.allowed_tools.mode == "auto":
        names = _list_names(choice.allowed_tools)
        return tuple(tool for tool in tools if _read_name(tool) in names)
    return tools


def _check_name(tool: NamedTool, names: frozenset[str], path: str) -> None:
    if tool.function.name not in names:
        raise InvalidParameter(
            f"{path}.function.name", "is not the name of one of the tools"
        )


def _list_names(allowed: ToolNames) -> frozenset[str]:
    return frozenset(tool.function.name for tool in allowed.tools)


def _read_name(tool: Mapping[str, object]) -> str:
    function = tool["function"]
    # Invariant: decode_tools has checked the tools.
    assert isinstance(function, Mapping), "a tool has a function"
    return str(function["name"])
