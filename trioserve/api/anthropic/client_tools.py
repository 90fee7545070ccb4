"""Tools as Anthropic's API defines them."""

from __future__ import annotations

import itertools
from typing import Final

import msgspec

from ...errors import InvalidParameter, NotSupported, list_choices
from ..decode.errors import explain
from ..decode.fields import Name
from ..shared.tools import (
    NamedFunction,
    NamedTool,
    ToolChoice,
    decode_any_tools,
    list_known,
)

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
        if self.type not in CHOICES:
            raise InvalidParameter("tool_choice.type", list_choices(CHOICES, self.type))
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
