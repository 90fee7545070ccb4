"""The server-sent events of one streamed answer, as bytes.

Most chunks of a choice differ in their text alone. So one chunk is encoded in advance and
split at its text, and each token only needs the encoding of its own text. Chunks with
other fields are encoded completely. bench/chunk_encoding.py measures both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ...errors import TrioserveError
from ...http.record.usage import (
    RequestMetrics,
    Usage,
)
from ...http.wire.encode import encode
from ...http.wire.error_body import ErrorBody
from .answers import (
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionLogprobs,
    FunctionChunk,
    ToolCallChunk,
)

DONE: Final = b"data: [DONE]\n\n"

# The text of the chunk that is split. The rest of the chunk is the same for all requests,
# so the last occurrence is the right one.
_MARK: Final = "the text"


class StreamHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that all chunks of a stream share.

    Args:
      created: seconds since 1970.
      system_fingerprint: changes if the same request could get another answer.
      include_usage: the last chunk has the usage; it is null in all others.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str | None = None
    include_usage: bool = False

    def usage_field(self, usage: Usage | None) -> Usage | UnsetType | None:
        """Return the usage of a chunk: counts, null, or no field."""
        if usage is None and not self.include_usage:
            return UNSET
        return usage


LogprobsT = TypeVar("LogprobsT")


class _Fields(msgspec.Struct, Generic[LogprobsT], frozen=True, kw_only=True, gc=False):
    """The fields of an event besides its text; see _Chunks.text."""

    logprobs: LogprobsT | None = None
    token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType = UNSET
    usage: Usage | None = None


class _Chunks(ABC, Generic[LogprobsT]):
    """Writes the events of one choice.

    Args:
      index: the choice's number: prompt number * n + sequence number.
    """

    def __init__(self, header: StreamHeader, index: int = 0) -> None:
        self._header = header
        self._index = index
        whole = self._write(_MARK, _Fields())
        self._before, _, self._after = whole.rpartition(encode(_MARK))

    def text(
        self,
        text: str,
        *,
        logprobs: LogprobsT | None = None,
        token_ids: Sequence[int] | None = None,
        prompt_token_ids: Sequence[int] | None = None,
        finish_reason: str | None = None,
        stop_reason: int | str | None = None,
        usage: Usage | None = None,
    ) -> bytes:
        """Write the next event.

        Args:
          logprobs, token_ids: of the tokens of the text.
          prompt_token_ids: the token ids of the prompt, in one event of the choice.
          finish_reason: set in the last event of the choice.
          stop_reason: the stop string or token that ended the choice.
          usage: the token counts so far, if every chunk reports them.
        """
        if (
            logprobs is None
            and token_ids is None
            and prompt_token_ids is None
            and finish_reason is None
            and usage is None
        ):
            return self._before + encode(text) + self._after
        fields = _Fields(
            logprobs=logprobs,
            token_ids=_unless_none(token_ids),
            prompt_token_ids=_unless_none(prompt_token_ids),
            finish_reason=finish_reason,
            stop_reason=UNSET if stop_reason is None else stop_reason,
            usage=usage,
        )
        return self._write(text, fields)

    @abstractmethod
    def _write(self, text: str, fields: _Fields[LogprobsT]) -> bytes:
        """Encode an event completely."""


class ChatChunks(_Chunks[ChatLogprobs]):
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
            _Fields(prompt_token_ids=prompt_token_ids, usage=usage),
        )

    def _write(self, text: str, fields: _Fields[ChatLogprobs]) -> bytes:
        return self._write_delta(self._make_delta(text), fields)

    def _write_delta(self, delta: ChatDelta, fields: _Fields[ChatLogprobs]) -> bytes:
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
            usage=header.usage_field(fields.usage),
        )
        return _event(chunk)

    def _make_delta(self, text: str) -> ChatDelta:
        return ChatDelta(content=text)


class ReasoningChunks(ChatChunks):
    """Writes the events of a choice's reasoning."""

    def _make_delta(self, text: str) -> ChatDelta:
        return ChatDelta(reasoning=text)


class EndChunks(ChatChunks):
    """Writes events without text; the text that they are given is empty."""

    def _make_delta(self, text: str) -> ChatDelta:
        return ChatDelta()


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

    def _make_delta(self, text: str) -> ChatDelta:
        call = ToolCallChunk(
            index=self._call_index,
            id=self._call_id or UNSET,
            type="function" if self._call_id else UNSET,
            function=FunctionChunk(name=self._name or UNSET, arguments=text),
        )
        return ChatDelta(tool_calls=(call,))


class CompletionChunks(_Chunks[CompletionLogprobs]):
    """Writes the events of one choice of a streamed completion."""

    def _write(self, text: str, fields: _Fields[CompletionLogprobs]) -> bytes:
        choice = CompletionChunkChoice(
            index=self._index,
            prompt_token_ids=fields.prompt_token_ids,
            text=text,
            logprobs=fields.logprobs,
            finish_reason=fields.finish_reason,
            stop_reason=fields.stop_reason,
            token_ids=fields.token_ids,
        )
        header = self._header
        chunk = CompletionChunk(
            id=header.id,
            created=header.created,
            model=header.model,
            system_fingerprint=header.system_fingerprint,
            choices=(choice,),
            usage=header.usage_field(fields.usage),
        )
        return _event(chunk)


def usage_event(
    chunk_type: type[ChatChunk] | type[CompletionChunk],
    header: StreamHeader,
    usage: Usage,
    metrics: RequestMetrics | UnsetType = UNSET,
) -> bytes:
    """Return the last event of a stream with the usage, which has no choices."""
    chunk = chunk_type(
        id=header.id,
        created=header.created,
        model=header.model,
        system_fingerprint=header.system_fingerprint,
        choices=(),
        usage=usage,
        metrics=metrics,
    )
    return _event(chunk)


def error_event(error: TrioserveError) -> bytes:
    """Return the event of an error that occurs after the status 200 was sent."""
    return _event(ErrorBody.of(error))


def _unless_none(token_ids: Sequence[int] | None) -> tuple[int, ...] | UnsetType:
    return UNSET if token_ids is None else tuple(token_ids)


def _event(data: msgspec.Struct) -> bytes:
    # JSON escapes line ends, so the event is one line.
    return b"data: " + encode(data) + b"\n\n"
