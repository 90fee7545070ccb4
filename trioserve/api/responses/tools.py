"""Tools as the Responses API writes them: without `function` in them.

Functions may stand in a namespace, as Codex sends the tools of an MCP server. The model sees
one name, which has both parts; calls have two fields again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter
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

# Names of functions have letters, digits, - and _ alone.
_BETWEEN: Final = "__"


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
    """Decode the same as the Responses API writes it.

    Returns:
      Functions. One that stood in a namespace has its name in a field `namespace`.
    """
    tools: list[dict[str, object]] = []
    for path, tool in list_known(
        name,
        decode_any_tools(name, raw),
        ("function", "namespace"),
        ignores_unknown=ignores_unknown,
    ):
        if tool["type"] == "namespace":
            tools += _read_namespace(path, tool, ignores_unknown=ignores_unknown)
        else:
            check_function(path, tool)
            _check_text(f"{path}.namespace", tool.get("namespace", "none"))
            tools.append(tool)
    return tuple(tools) or None


def _read_namespace(
    path: str, tool: Mapping[str, Any], *, ignores_unknown: bool
) -> Iterator[dict[str, object]]:
    namespace, tools = tool.get("name"), tool.get("tools")
    _check_text(f"{path}.name", namespace)
    if not isinstance(tools, list) or not all(isinstance(each, dict) for each in tools):
        raise InvalidParameter(f"{path}.tools", "must be a list of objects")
    for inner, function in list_known(
        f"{path}.tools", tools, ("function",), ignores_unknown=ignores_unknown
    ):
        check_function(inner, function)
        yield function | {"namespace": namespace}


def _check_text(path: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidParameter(path, "must be a text")


def name_for_model(name: str, namespace: object) -> str:
    """Return the name of a function that the model sees.

    Args:
      namespace: its name; None for a function outside of all.
    """
    return name if namespace is None else f"{namespace}{_BETWEEN}{name}"


def list_namespaced(tools: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Return the name and the namespace of each function in one, by name_for_model."""
    return {
        name_for_model(tool["name"], tool["namespace"]): (
            tool["name"],
            tool["namespace"],
        )
        for tool in tools
        if "namespace" in tool
    }


def decode_flat_tool_choice(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> FlatToolChoice | None:
    """Decode the same as the Responses API writes it."""
    kinds = {"function": FlatNamedTool, "allowed_tools": FlatAllowedTools}
    choice: FlatToolChoice | None = decode_choice(name, raw, kinds)
    return choice
