"""Tools as Anthropic's API defines them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ...errors import InvalidParameter, NotSupported
from .errors import explain
from .free_form import MAX_TOOLS_BYTES, decode_free_form
from .messages import Name
from .tool_choice import NamedFunction, NamedTool, ToolChoice

CHOICES: Final = ("auto", "any", "tool", "none")


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
    """Whether the model may or must call tools.

    Args:
      type: auto, any, tool or none.
      name: the tool that the model must call.
      disable_parallel_tool_use: at most one call is wanted.
    """

    type: str
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None

    def __post_init__(self) -> None:
        if self.type not in CHOICES:
            raise InvalidParameter(
                "tool_choice.type", f"must be one of {', '.join(CHOICES)}"
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


def decode_client_tools(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> tuple[ClientTool, ...] | None:
    """Decode the tools of a request.

    Raises:
      InvalidParameter: a tool lacks a field, or the tools are too large or too deep.
      NotSupported: a tool is one of the provider's, or has an option that the server does
        not have.
    """
    tools: tuple[dict[str, object], ...] | None = decode_free_form(
        name, raw, tuple[dict[str, object], ...] | None, MAX_TOOLS_BYTES
    )
    if not tools:
        return None
    for index, tool in enumerate(tools):
        _check_type(f"{name}[{index}]", tool)
    try:
        typed = msgspec.convert(tools, tuple[ClientTool, ...])
    except msgspec.ValidationError as error:
        raise explain(error, name) from None
    for index, each in enumerate(typed):
        each.check(f"{name}[{index}]")
    return typed


def _check_type(path: str, tool: dict[str, Any]) -> None:
    if tool.get("type") not in (None, "custom"):
        raise NotSupported(
            f"{path}.type", "only tools of the client's own (custom) are taken"
        )
