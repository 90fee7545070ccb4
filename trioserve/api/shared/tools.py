"""The tools that a model may call, and whether it may, must or must not call them.

Agents also send tools that their provider runs, such as web_search, or whose form only its
models know, such as custom and local_shell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import itertools
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter, NotSupported, list_choices, quote
from ..decode.fields import Name
from ..decode.values import begins_with, decode_field, decode_free_form

# Bounds on the memory of one request: a byte of free-form JSON can become thirty bytes of
# objects. The tools of the largest agents that were seen take 100 kB.
MAX_TOOLS_BYTES: Final = 262_144

# The tools of one request are bounded in bytes; so many have no schemas.
MAX_NAMES: Final = 4096

# The optional fields: their types, and the same in words.
_OPTIONAL: Final[Mapping[str, tuple[type, str]]] = {
    "description": (str, "a text"),
    "parameters": (dict, "an object"),
    "strict": (bool, "true or false"),
}

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


ToolChoice = ToolMode | NamedTool | AllowedTools


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


def decode_tools(
    name: str, raw: msgspec.Raw, max_tokens: int, *, ignores_unknown: bool = False
) -> tuple[dict[str, object], ...] | None:
    """Decode the functions that a model may call.

    Args:
      ignores_unknown: whether tools that are not functions are left out.

    Raises:
      InvalidParameter: a tool has no name, or a field of the wrong type, or the tools are
        too large or too deep.
      NotSupported: a tool is not a function.
    """
    tools = list_known(
        name,
        decode_any_tools(name, raw),
        ("function", None),
        ignores_unknown=ignores_unknown,
    )
    return tuple(itertools.starmap(_read_tool, tools)) or None


def decode_any_tools(name: str, raw: msgspec.Raw) -> tuple[dict[str, object], ...]:
    """Decode tools of any form.

    Raises:
      InvalidParameter: the tools are not a list of objects, or are too large or too deep.
    """
    tools: tuple[dict[str, object], ...] | None = decode_free_form(
        name, raw, tuple[dict[str, object], ...] | None, MAX_TOOLS_BYTES
    )
    return tools or ()


def check_function(path: str, function: Mapping[str, object]) -> None:
    """Refuse a function without a name, or with a field of the wrong type.

    Raises:
      InvalidParameter
    """
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidParameter(f"{path}.name", "must be a text")
    for field, (kind, in_words) in _OPTIONAL.items():
        value = function.get(field)
        if value is not None and not isinstance(value, kind):
            raise InvalidParameter(f"{path}.{field}", f"must be {in_words}")


def drop_nulls(function: Mapping[str, object]) -> dict[str, object]:
    """Leave out fields that the client did not describe.

    Otherwise chat templates would show null to the model.
    """
    return {
        name: value
        for name, value in function.items()
        if value is not None or name not in _OPTIONAL
    }


def list_known(
    path: str,
    tools: Sequence[dict[str, object]],
    known: Sequence[str | None],
    *,
    ignores_unknown: bool,
) -> Iterator[tuple[str, dict[str, object]]]:
    """List the tools of known types, each with its path.

    Args:
      known: the types of the client's own tools; None stands for no type.
      ignores_unknown: whether other tools are left out, and not refused.

    Raises:
      NotSupported: a tool has another type.
    """
    for index, tool in enumerate(tools):
        if tool.get("type") in known:
            yield f"{path}[{index}]", tool
        elif not ignores_unknown:
            raise NotSupported(
                f"{path}[{index}].type",
                f"{_describe(tool)} is not run here; send functions, or start the server "
                "with --ignore-unknown-tools, which leaves such tools out",
            )


def decode_tool_choice(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> ToolChoice | None:
    """Decode a mode, or the names of one or several tools.

    Raises:
      InvalidParameter: it is neither.
      NotSupported: it is a choice of another type.
    """
    kinds = {"function": NamedTool, "allowed_tools": AllowedTools}
    choice: ToolChoice | None = decode_choice(name, raw, kinds)
    return choice


def decode_choice(name: str, raw: msgspec.Raw, kinds: Mapping[str, type]) -> Any:
    """Decode a mode, or an object of one of several types.

    Args:
      kinds: the structs of the objects by their `type`.
    """
    if not begins_with(raw, b"{"):
        return decode_field(name, raw, ToolMode | None)
    fields: dict[str, object] = decode_free_form(
        name, raw, dict[str, object], MAX_TOOLS_BYTES
    )
    kind = fields.get("type", "function")
    if not isinstance(kind, str) or kind not in kinds:
        raise NotSupported(f"{name}.type", list_choices(kinds, kind))
    return decode_field(name, raw, kinds[kind])


def _read_tool(path: str, tool: dict[str, object]) -> dict[str, object]:
    function = tool.get("function")
    if not isinstance(function, dict):
        raise InvalidParameter(f"{path}.function", "must be an object")
    check_function(f"{path}.function", function)
    return tool | {"function": drop_nulls(function)}


def _describe(tool: Mapping[str, Any]) -> str:
    kind = tool.get("type")
    inner = tool.get(kind) if isinstance(kind, str) else None
    name = tool.get("name") or (isinstance(inner, dict) and inner.get("name"))
    return f"a tool of the type {quote(kind)}" + (f" ({quote(name)})" if name else "")
