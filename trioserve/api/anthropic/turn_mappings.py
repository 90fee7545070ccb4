"""A conversation of Anthropic's API in the renderer's form, the form of chats.

One turn may become several messages: each result of a tool is a message of its own. And
successive turns of one role become one message, as Anthropic's API joins them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
import re
from typing import Final, NamedTuple

from ...render import TURN_CHARACTERS, Base64Image
from ..decode.values import read_string
from ..shared.message_mappings import LazyMappings, decode_arguments
from .turns import AnthropicTurn, Block, ResultBlock, System

# The number of the turn for blocks of `system`, and of the block for a plain string.
_SYSTEM: Final = -1
_STRING: Final = -1

# A place in the messages that the renderer reads, as its errors name it.
_PLACE: Final = re.compile(r"messages\[(\d+)\](?:\.(content|tool_calls)\[(\d+)\])?")


class _Piece(NamedTuple):
    """A block, with the numbers of its turn and of its place there."""

    turn: int
    number: int
    block: ResultBlock

    @property
    def path(self) -> str:
        return self.turn_path if self.number == _STRING else self._block_path

    @property
    def turn_path(self) -> str:
        return "system" if self.turn == _SYSTEM else f"messages[{self.turn}]"

    @property
    def _block_path(self) -> str:
        content = "" if self.turn == _SYSTEM else ".content"
        return f"{self.turn_path}{content}[{self.number}]"


@dataclass(slots=True)
class _Message:
    """The blocks of one message; a message of the role `tool` has one."""

    role: str
    pieces: list[_Piece]

    @property
    def content(self) -> list[_Piece]:
        return [piece for piece in self.pieces if piece.block.type in ("text", "image")]

    @property
    def calls(self) -> list[_Piece]:
        return [piece for piece in self.pieces if piece.block.type == "tool_use"]

    @property
    def reasoning(self) -> list[str]:
        blocks = (piece.block for piece in self.pieces)
        return [b.thinking for b in blocks if isinstance(b, Block) and b.thinking]


class TurnMappings(LazyMappings):
    """The messages of a conversation, with the system prompt as the first one.

    Args:
      turns, system: as check_conversation takes them.

    Raises:
      InvalidParameter: on reading: the input of a call is too long, or no JSON. `param`
        and the message name the place in the renderer's form; see `locate`.
    """

    def __init__(self, turns: tuple[AnthropicTurn, ...], system: System | None) -> None:
        self._turns = turns
        self._system = system

    @cached_property
    def num_characters(self) -> int:
        return sum(
            TURN_CHARACTERS + _count_characters(content) for content in self._contents
        )

    def list_sizes(self) -> Iterator[int]:
        for content in self._contents:
            yield len(content) if isinstance(content, tuple) else 1
            # Results of tools have parts, too.
            for block in () if isinstance(content, str) else content:
                if isinstance(block.content, tuple):
                    yield len(block.content) if isinstance(block.content, tuple) else 1

    @property
    def _contents(self) -> list[str | tuple[Block, ...]]:
        system = [self._system] if self._system else []
        return system + [turn.content for turn in self._turns]

    @cached_property
    def _messages(self) -> list[_Message]:
        messages: list[_Message] = []
        for role, piece in _list_pieces(self._turns, self._system):
            if role != "tool" and messages and messages[-1].role == role:
                messages[-1].pieces.append(piece)
            else:
                messages.append(_Message(role, [piece]))
        return messages

    def __len__(self) -> int:
        return len(self._messages)

    def make(self, index: int) -> dict[str, object]:
        message, path = self._messages[index], f"messages[{index}]"
        if message.role == "tool":
            return _make_result(message.pieces[0].block, path)
        mapping: dict[str, object] = {
            "role": message.role,
            "content": _make_parts([p.block for p in message.content], path),
        }
        if message.reasoning:
            mapping["reasoning"] = "\n".join(message.reasoning)
        if calls := message.calls:
            mapping["tool_calls"] = [
                _make_call(piece.block, f"{path}.tool_calls[{number}]")
                for number, piece in enumerate(calls)
            ]
            # Some templates tell a message without content from one with an empty one.
            mapping["content"] = mapping["content"] or None
        return mapping

    def locate(self, param: str) -> str:
        """Return the client's name of a field that the renderer names in an error."""
        found = _PLACE.match(param)
        if found is None:
            return param
        message = self._messages[int(found[1])]
        if found[3] is None:
            return message.pieces[0].turn_path
        number = int(found[3])
        if found[2] == "tool_calls":
            return message.calls[number].path
        if message.role == "tool":
            return f"{message.pieces[0].path}.content[{number}]"
        return message.content[number].path


def _list_pieces(
    turns: tuple[AnthropicTurn, ...], system: System | None
) -> Iterator[tuple[str, _Piece]]:
    """Yield the blocks of a conversation with the roles of their messages."""
    if system:
        for piece in _split(_SYSTEM, system):
            yield "system", piece
    for index, turn in enumerate(turns):
        for piece in _split(index, turn.content):
            yield "tool" if piece.block.type == "tool_result" else turn.role, piece


def _split(turn: int, content: str | tuple[Block, ...]) -> Iterator[_Piece]:
    if isinstance(content, str):
        yield _Piece(turn, _STRING, ResultBlock(type="text", text=content))
        return
    for number, block in enumerate(content):
        yield _Piece(turn, number, block)


def _make_result(block: ResultBlock, path: str) -> dict[str, object]:
    assert isinstance(block, Block), "results are blocks of a turn"
    content: object = block.content or ""
    if isinstance(block.content, tuple):
        content = _make_parts(block.content, path)
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _make_call(block: ResultBlock, path: str) -> dict[str, object]:
    assert isinstance(block, Block), "calls are blocks of a turn"
    arguments = decode_arguments(f"{path}.function.arguments", block.input)
    return {
        "id": block.id,
        "type": "function",
        "function": {"name": block.name, "arguments": arguments},
    }


def _make_parts(
    blocks: tuple[ResultBlock, ...] | list[ResultBlock], path: str
) -> list[dict[str, object]]:
    return [
        _make_part(block, f"{path}.content[{number}]")
        for number, block in enumerate(blocks)
    ]


def _make_part(block: ResultBlock, path: str) -> dict[str, object]:
    source = block.source
    if block.type == "text" or source is None:
        return {"type": "text", "text": block.text}
    url: object
    if source.type == "url":
        url = read_string(path, source.url)
    else:
        url = Base64Image(data=read_string(path, source.data))
    return {"type": "image_url", "image_url": {"url": url}}


def _count_characters(content: str | tuple[ResultBlock, ...]) -> int:
    if isinstance(content, str):
        return len(content)
    return sum(map(_count_block, content))


def _count_block(block: ResultBlock) -> int:
    num_characters = len(block.text or "")
    if isinstance(block, Block):
        num_characters += len(block.thinking or "") + len(memoryview(block.input))
        num_characters += _count_characters(block.content or "")
    return num_characters
