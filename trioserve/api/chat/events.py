"""The events of a streamed chat."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from ...http.record.stream_meter import StreamMeter
from ...http.record.usage import Usage
from ...types.output import TextDelta, ToolCallDelta
from ..shared.chunks import ChunkEvents, ChunkFields, Chunks, StreamHeader, write_event
from ..shared.logprobs import ChatLogprobs, TokenTexts
from .answers import (
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    FunctionChunk,
    ToolCallChunk,
    make_logprobs,
    tell_finish_reason,
)
from .request import ChatRequest


class ChatChunks(Chunks[ChatLogprobs]):
    """Writes the events of one choice of a streamed chat."""

    def start(
        self,
        *,
        content: str | None = "",
        prompt_token_ids: tuple[int, ...] | UnsetType = UNSET,
        usage: Usage | None = None,
    ) -> bytes:
        """Write the first event of the choice, which has the role and no text.

        Args:
          content: None if the choice may have no text.
        """
        return self._write_delta(
            ChatDelta(role="assistant", content=content),
            ChunkFields(prompt_token_ids=prompt_token_ids, usage=usage),
        )

    def _write(self, text: str, fields: ChunkFields[ChatLogprobs]) -> bytes:
        return self._write_delta(ChatDelta(content=text), fields)

    def _write_delta(
        self, delta: ChatDelta, fields: ChunkFields[ChatLogprobs]
    ) -> bytes:
        choice = ChatChunkChoice(
            index=self._index,
            delta=delta,
            logprobs=fields.logprobs,
            finish_reason=fields.finish_reason,
            stop_reason=fields.stop_reason,
            token_ids=fields.token_ids,
        )
        header = self._header
        chunk = ChatChunk(
            id=header.id,
            created=header.created,
            model=header.model,
            system_fingerprint=header.system_fingerprint,
            prompt_token_ids=fields.prompt_token_ids,
            choices=(choice,),
            usage=fields.usage or header.no_usage,
        )
        return write_event(chunk)


class ReasoningChunks(ChatChunks):
    """Writes the events of a choice's reasoning."""

    def _write(self, text: str, fields: ChunkFields[ChatLogprobs]) -> bytes:
        return self._write_delta(ChatDelta(reasoning=text), fields)


class EndChunks(ChatChunks):
    """Writes events without text; the text that they are given is empty."""

    def _write(self, text: str, fields: ChunkFields[ChatLogprobs]) -> bytes:
        return self._write_delta(ChatDelta(), fields)


class ToolCallChunks(ChatChunks):
    """Writes events of a tool call, whose text is its arguments.

    Args:
      call_index: the call's number in its choice.
      call_id, name: of the call, for its first event.
    """

    def __init__(
        self,
        header: StreamHeader,
        index: int,
        call_index: int,
        *,
        call_id: str = "",
        name: str = "",
    ) -> None:
        self._call_index = call_index
        self._call_id = call_id
        self._name = name
        super().__init__(header, index)

    def _write(self, text: str, fields: ChunkFields[ChatLogprobs]) -> bytes:
        call = ToolCallChunk(
            index=self._call_index,
            id=self._call_id or UNSET,
            type="function" if self._call_id else UNSET,
            function=FunctionChunk(name=self._name or UNSET, arguments=text),
        )
        return self._write_delta(ChatDelta(tool_calls=(call,)), fields)


class ChatEvents(ChunkEvents[ChatRequest, ChatChunks]):
    """Writes the events of a streamed chat."""

    chunk_type = ChatChunk

    def __init__(
        self,
        body: ChatRequest,
        header: StreamHeader,
        meter: StreamMeter,
        texts: TokenTexts,
    ) -> None:
        super().__init__(body, header, meter)
        self._texts = texts
        self._echoed_text = body.echoed_text
        # Most models neither reason nor call tools, so these are made when they are needed.
        self._reasoning_chunks: dict[int, ReasoningChunks] = {}
        # The chunks of each sequence's last call.
        self._call_chunks: dict[int, ToolCallChunks] = {}
        self._end_chunks: dict[int, EndChunks] = {}

    def write_all(self, delta: TextDelta) -> bytes:
        # The event with the role is sent with the first token, and not before it. So a
        # client that measures the time to the first chunk measures the first token.
        # Choices begin in their order, because OpenAI's client looks them up in a list.
        events = b""
        for index in range(len(self.chunks), delta.index + 1):
            self.chunks[index] = ChatChunks(self.header, index)
            events += self._start(self.chunks[index], len(delta.token_ids))
        parts = self._list_parts(delta)
        for chunks, text in parts[:-1]:
            events += chunks.text(text, usage=self.current_usage())
        return events + self._write_last(delta, *parts[-1])

    def _list_parts(self, delta: TextDelta) -> list[tuple[ChatChunks, str]]:
        """Divide a delta into events: at least one, which may be empty."""
        index = delta.index
        parts: list[tuple[ChatChunks, str]] = []
        if delta.reasoning and self.body.includes_reasoning:
            parts.append((self._find_reasoning_chunks(index), delta.reasoning))
        if delta.text:
            parts.append((self.chunks[index], delta.text))
        for piece in delta.tool_calls:
            parts.append((self._find_call_chunks(index, piece), piece.arguments))
        return parts or [(self._find_empty_chunks(index), "")]

    def _write_last(self, delta: TextDelta, chunks: ChatChunks, text: str) -> bytes:
        """Write the last event of a delta, which has all other fields."""
        logprobs = make_logprobs(self.body, delta, self._texts)
        token_ids = delta.token_ids if self.body.return_token_ids else None
        # All text may be held back, because it may be the beginning of a stop string.
        has_text = text or delta.tool_calls
        if not (has_text or delta.finish_reason or logprobs or token_ids):
            return b""
        return chunks.text(
            text,
            logprobs=logprobs,
            token_ids=token_ids,
            finish_reason=tell_finish_reason(
                delta.finish_reason, calls=delta.index in self._call_chunks
            ),
            stop_reason=delta.stop_reason,
            usage=self.current_usage(),
        )

    def _find_reasoning_chunks(self, index: int) -> ReasoningChunks:
        if index not in self._reasoning_chunks:
            self._reasoning_chunks[index] = ReasoningChunks(self.header, index)
        return self._reasoning_chunks[index]

    def _find_call_chunks(self, index: int, piece: ToolCallDelta) -> ToolCallChunks:
        if not piece.id:
            return self._call_chunks[index]
        self._call_chunks[index] = ToolCallChunks(self.header, index, piece.index)
        return ToolCallChunks(
            self.header, index, piece.index, call_id=piece.id, name=piece.name
        )

    def _find_empty_chunks(self, index: int) -> ChatChunks:
        # An empty text would make the content of an answer with calls alone empty, which is
        # null in an answer that is not streamed.
        if not self.meter.stream.splits_tool_calls:
            return self.chunks[index]
        if index not in self._end_chunks:
            self._end_chunks[index] = EndChunks(self.header, index)
        return self._end_chunks[index]

    def _start(self, chunks: ChatChunks, num_tokens: int) -> bytes:
        """Write the events before the first tokens: the role, and the echo."""
        shows_prompt = self.body.return_token_ids
        usage = self.current_usage(without=num_tokens)
        role = chunks.start(
            content=None if self.meter.stream.splits_tool_calls else "",
            prompt_token_ids=(
                self.meter.prompts[0].token_ids if shows_prompt else UNSET
            ),
            usage=usage,
        )
        if not self._echoed_text:
            return role
        return role + chunks.text(self._echoed_text, usage=usage)
