"""From the deltas of an answer to the content blocks of Anthropic's API.

Blocks follow each other: the reasoning, the text, and each call of a tool. A stream sends
the events; a whole answer is put together from the same events, so that both are equal.
"""

from __future__ import annotations

import msgspec

from ...types.output import TextDelta, ToolCallDelta
from ..shared.cut_object import NO_ARGUMENTS, read_arguments
from .answers import (
    BlockDelta,
    BlockEvent,
    BlockStart,
    BlockStop,
    Content,
    InputPiece,
    Piece,
    SignaturePiece,
    TextContent,
    TextPiece,
    ThinkingContent,
    ThinkingPiece,
    ToolUseContent,
)


class BlockWriter:
    """Turns the deltas of one answer into events.

    Args:
      signature: of the reasoning.
      shows_thinking: whether the block of the reasoning has the text of it.

    Attributes:
      has_calls: whether the answer has called a tool.
    """

    def __init__(self, signature: str, *, shows_thinking: bool) -> None:
        self.has_calls = False
        self._signature = signature
        self._shows_thinking = shows_thinking
        # The open block, and its number or the next block's.
        self._open: Content | None = None
        self._index = 0
        # The number of the call of the open block.
        self._call = -1
        # Whitespace behind a call. It is dropped, unless text follows.
        self._space = ""

    def push(self, delta: TextDelta) -> list[BlockEvent]:
        """Return the events of the next delta; the last one closes the last block."""
        events: list[BlockEvent] = []
        if delta.reasoning:
            events += self._think(delta.reasoning)
        pieces = delta.tool_calls
        # The rest of the open call comes before the text behind it.
        if pieces and not pieces[0].id:
            events += self._call_tool(pieces[0])
            pieces = pieces[1:]
        if delta.text:
            events += self._write(delta.text)
        for piece in pieces:
            events += self._call_tool(piece)
        if delta.finish_reason is not None:
            events += self._finish()
        return events

    def _think(self, text: str) -> list[BlockEvent]:
        events: list[BlockEvent] = []
        if not isinstance(self._open, ThinkingContent):
            events += self._begin(ThinkingContent("", ""))
        if self._shows_thinking:
            events.append(self._add(ThinkingPiece(text)))
        return events

    def _write(self, text: str) -> list[BlockEvent]:
        events: list[BlockEvent] = []
        if not isinstance(self._open, TextContent):
            text = self._space + text
            if self.has_calls and text.isspace():
                self._space = text
                return []
            self._space = ""
            events += self._begin(TextContent(""))
        return [*events, self._add(TextPiece(text))]

    def _call_tool(self, piece: ToolCallDelta) -> list[BlockEvent]:
        events: list[BlockEvent] = []
        if piece.index != self._call:
            self._call = piece.index
            self._space = ""
            self.has_calls = True
            events += self._begin(ToolUseContent(piece.id, piece.name, NO_ARGUMENTS))
        if piece.arguments:
            events.append(self._add(InputPiece(piece.arguments)))
        return events

    def _finish(self) -> list[BlockEvent]:
        if self._open is None:
            # Clients read the first block without a check.
            return [*self._begin(TextContent("")), *self._close()]
        return self._close()

    def _begin(self, block: Content) -> list[BlockEvent]:
        events = self._close()
        self._open = block
        return [*events, BlockStart(self._index, block)]

    def _add(self, piece: Piece) -> BlockDelta:
        return BlockDelta(self._index, piece)

    def _close(self) -> list[BlockEvent]:
        if self._open is None:
            return []
        events: list[BlockEvent] = []
        if isinstance(self._open, ThinkingContent):
            events.append(self._add(SignaturePiece(self._signature)))
        events.append(BlockStop(self._index))
        self._index += 1
        self._open = None
        return events


class ContentCollector:
    """Puts the content of an answer together from its events."""

    def __init__(self) -> None:
        self._blocks: list[Content] = []
        self._texts: list[str] = []
        self._signature = ""

    def add(self, events: list[BlockEvent]) -> None:
        for event in events:
            match event:
                case BlockStart():
                    self._blocks.append(event.content_block)
                case BlockDelta():
                    self._add_piece(event.delta)
                case BlockStop():
                    self._blocks[-1] = self._complete(self._blocks[-1])
                    self._texts.clear()

    def build(self) -> tuple[Content, ...]:
        """Return the blocks, all of which must have ended."""
        return tuple(self._blocks)

    def _add_piece(self, piece: Piece) -> None:
        match piece:
            case TextPiece(text=text) | ThinkingPiece(thinking=text):
                self._texts.append(text)
            case InputPiece(partial_json=text):
                self._texts.append(text)
            case SignaturePiece(signature=signature):
                self._signature = signature

    def _complete(self, block: Content) -> Content:
        text = "".join(self._texts)
        match block:
            case TextContent():
                return TextContent(text)
            case ThinkingContent():
                return ThinkingContent(text, self._signature)
            case ToolUseContent():
                return msgspec.structs.replace(block, input=read_arguments(text))
