"""The events of a streamed chat."""

from __future__ import annotations

from msgspec import UNSET

from ...errors import TrioserveError
from ...http.record.stream_meter import StreamMeter
from ...http.record.usage import Usage
from ...types.output import FinishReason, TextDelta, ToolCallDelta
from ..shared.answers import (
    ChatChunk,
    ChatLogprobs,
)
from ..shared.chunks import (
    DONE,
    ChatChunks,
    EndChunks,
    ReasoningChunks,
    StreamHeader,
    ToolCallChunks,
    error_event,
    usage_event,
)
from ..shared.logprobs import (
    TokenTexts,
    build_chat_logprobs,
)
from .request import ChatRequest


class ChatEvents:
    """Writes the events of a streamed chat."""

    def __init__(
        self,
        body: ChatRequest,
        header: StreamHeader,
        meter: StreamMeter,
        texts: TokenTexts,
    ) -> None:
        self._body = body
        self._header = header
        self._meter = meter
        self._texts = texts
        self._echoed_text = body.echoed_text
        self._chunks: dict[int, ChatChunks] = {}
        # Most models neither reason nor call tools, so these are made when they are needed.
        self._reasoning_chunks: dict[int, ReasoningChunks] = {}
        # The chunks of each sequence's last call.
        self._call_chunks: dict[int, ToolCallChunks] = {}
        self._end_chunks: dict[int, EndChunks] = {}

    def write(self, delta: TextDelta) -> bytes:
        # The event with the role is sent with the first token, and not before it. So a
        # client that measures the time to the first chunk measures the first token.
        events = b""
        if delta.index not in self._chunks:
            self._chunks[delta.index] = ChatChunks(self._header, delta.index)
            events = self._start(self._chunks[delta.index], len(delta.token_ids))
        parts = self._list_parts(delta)
        for chunks, text in parts[:-1]:
            events += chunks.text(text, usage=self._current_usage())
        return events + self._write_last(delta, *parts[-1])

    def end(self) -> bytes:
        if not self._body.reports_usage:
            return DONE
        meter = self._meter
        metrics = meter.metrics if self._body.return_metrics else UNSET
        return usage_event(ChatChunk, self._header, meter.usage, metrics) + DONE

    def fail(self, error: TrioserveError) -> bytes:
        return error_event(error) + DONE

    def _list_parts(self, delta: TextDelta) -> list[tuple[ChatChunks, str]]:
        """Divide a delta into events: at least one, which may be empty."""
        index = delta.index
        parts: list[tuple[ChatChunks, str]] = []
        if delta.reasoning and self._body.includes_reasoning:
            parts.append((self._find_reasoning_chunks(index), delta.reasoning))
        if delta.text:
            parts.append((self._chunks[index], delta.text))
        for piece in delta.tool_calls:
            parts.append((self._find_call_chunks(index, piece), piece.arguments))
        return parts or [(self._find_empty_chunks(index), "")]

    def _write_last(self, delta: TextDelta, chunks: ChatChunks, text: str) -> bytes:
        """Write the last event of a delta, which has all other fields."""
        logprobs = make_logprobs(self._body, delta, self._texts)
        token_ids = delta.token_ids if self._body.return_token_ids else None
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
            usage=self._current_usage(),
        )

    def _find_reasoning_chunks(self, index: int) -> ReasoningChunks:
        if index not in self._reasoning_chunks:
            self._reasoning_chunks[index] = ReasoningChunks(self._header, index)
        return self._reasoning_chunks[index]

    def _find_call_chunks(self, index: int, piece: ToolCallDelta) -> ToolCallChunks:
        if not piece.id:
            return self._call_chunks[index]
        self._call_chunks[index] = ToolCallChunks(self._header, index, piece.index)
        return ToolCallChunks(
            self._header, index, piece.index, call_id=piece.id, name=piece.name
        )

    def _find_empty_chunks(self, index: int) -> ChatChunks:
        # An empty text would make the content of an answer with calls alone empty, which is
        # null in an answer that is not streamed.
        if not self._meter.stream.splits_tool_calls:
            return self._chunks[index]
        if index not in self._end_chunks:
            self._end_chunks[index] = EndChunks(self._header, index)
        return self._end_chunks[index]

    def _start(self, chunks: ChatChunks, num_tokens: int) -> bytes:
        """Write the events before the first tokens: the role, and the echo."""
        shows_prompt = self._body.return_token_ids
        usage = self._current_usage(without=num_tokens)
        role = chunks.start(
            content=None if self._meter.stream.splits_tool_calls else "",
            prompt_token_ids=(
                self._meter.prompts[0].token_ids if shows_prompt else UNSET
            ),
            usage=usage,
        )
        if not self._echoed_text:
            return role
        return role + chunks.text(self._echoed_text, usage=usage)

    def _current_usage(self, without: int = 0) -> Usage | None:
        """Return the usage so far, less some output tokens, if the client wants it."""
        if not self._body.reports_usage_continuously:
            return None
        usage = self._meter.usage
        return usage.without(without) if without else usage


def make_logprobs(
    body: ChatRequest, delta: TextDelta, texts: TokenTexts
) -> ChatLogprobs | None:
    """Return the log probabilities of a delta, or of a whole answer, if they are asked for."""
    if not body.logprobs or not delta.logprobs:
        return None
    return build_chat_logprobs(delta.logprobs, texts)


def tell_finish_reason(reason: FinishReason | None, *, calls: bool) -> str | None:
    """Return the reason in OpenAI's words.

    Args:
      calls: the sequence has called a tool.
    """
    return "tool_calls" if calls and reason == "stop" else reason
