"""The structs of a conversation in Anthropic's API, as clients send it.

Fields of blocks that change nothing here are not listed, and so they are ignored:
`cache_control`, `citations` of earlier texts, `signature` of earlier thinking, and
`is_error` of results. docs/api.rst tells the clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter, NotSupported, list_choices
from ..decode.fields import Name
from ..decode.values import begins_with
from ..shared.messages import MAX_MESSAGES, MAX_PARTS

# The types that Anthropic's API takes. The decoder finds out the real one.
IMAGE_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")

# The blocks that each role may send.
BLOCK_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}
RESULT_TYPES: Final = ("text", "image")

# The fields that a block of each type must have.
_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text",),
    "image": ("source",),
    "tool_result": ("tool_use_id",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
    "tool_use": ("id", "name", "input"),
}


class ImageSource(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The source of an image: a URL, or a file in base64.

    Both may be megabytes long. They stay bytes of the body, which costs nothing.
    """

    type: str
    media_type: str | None = None
    data: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    url: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class ResultBlock(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part of a tool's result: a text or an image."""

    type: str
    text: str | None = None
    source: ImageSource | None = None


class Block(ResultBlock, frozen=True, kw_only=True, gc=False):
    """A part of a turn.

    Args:
      id, name, input: of a tool_use.
      tool_use_id, content: of a tool_result.
    """

    thinking: str | None = None
    id: Name | None = None
    name: Name | None = None
    input: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    tool_use_id: Name | None = None
    content: (
        str | Annotated[tuple[ResultBlock, ...], Meta(max_length=MAX_PARTS)] | None
    ) = None


Blocks = Annotated[tuple[Block, ...], Meta(max_length=MAX_PARTS)]


class AnthropicTurn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message of the conversation."""

    role: str
    content: str | Blocks


System = str | Blocks
Turns = Annotated[
    tuple[AnthropicTurn, ...], Meta(min_length=1, max_length=MAX_MESSAGES)
]


def check_conversation(system: System | None, turns: tuple[AnthropicTurn, ...]) -> None:
    """Refuse blocks that are incomplete, or that the server does not support.

    Raises:
      InvalidParameter: a role is unknown, a block lacks a field, or the last turn calls
        tools.
      NotSupported: a block or a source is of a type that the server does not take.
    """
    if isinstance(system, tuple):
        _check_blocks("system", system, BLOCK_TYPES["system"])
    for index, turn in enumerate(turns):
        path = f"messages[{index}]"
        if turn.role not in BLOCK_TYPES:
            raise InvalidParameter(f"{path}.role", list_choices(BLOCK_TYPES, turn.role))
        if isinstance(turn.content, tuple):
            _check_blocks(f"{path}.content", turn.content, BLOCK_TYPES[turn.role])
    last = turns[-1]
    if last.role == "assistant" and calls_tools(last):
        raise InvalidParameter(
            f"messages[{len(turns) - 1}]",
            "its tool_use blocks need tool_result blocks in a message behind it",
        )


def calls_tools(turn: AnthropicTurn) -> bool:
    """Return whether a turn has a tool_use block."""
    content = turn.content
    return not isinstance(content, str) and any(
        block.type == "tool_use" for block in content
    )


def _check_blocks(
    path: str, blocks: tuple[ResultBlock, ...], types: tuple[str, ...]
) -> None:
    for index, block in enumerate(blocks):
        if block.type not in types:
            raise NotSupported(f"{path}[{index}].type", list_choices(types, block.type))
        for name in _REQUIRED[block.type]:
            if getattr(block, name) in (None, msgspec.Raw()):
                raise InvalidParameter(f"{path}[{index}].{name}", "is required")
        if block.type == "image" and block.source is not None:
            _check_source(f"{path}[{index}].source", block.source)
        if isinstance(block, Block):
            _check_tool(f"{path}[{index}]", block)


def _check_tool(path: str, block: Block) -> None:
    """Check the input of a call, or the content of a result."""
    if block.type == "tool_use" and not begins_with(block.input, b"{"):
        raise InvalidParameter(f"{path}.input", "must be an object")
    if block.type == "tool_result" and isinstance(block.content, tuple):
        _check_blocks(f"{path}.content", block.content, RESULT_TYPES)


def _check_source(path: str, source: ImageSource) -> None:
    if source.type not in ("base64", "url"):
        raise NotSupported(f"{path}.type", "must be base64 or url")
    field = "data" if source.type == "base64" else "url"
    if not begins_with(getattr(source, field), b'"'):
        raise InvalidParameter(f"{path}.{field}", "must be a string")
    if source.type == "base64" and source.media_type not in IMAGE_TYPES:
        raise InvalidParameter(
            f"{path}.media_type", list_choices(IMAGE_TYPES, source.media_type)
        )
