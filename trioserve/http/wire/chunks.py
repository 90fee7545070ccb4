"""Server-sent events of one streamed answer, as bytes.

All chunks of a choice are the same but for the text. So a chunk is encoded once, cut
where its text stands, and every token costs the encoding of its text alone; chunks
that say more are encoded whole. bench/chunk_encoding.py measures both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ...errors import TrioserveError
from .responses import (
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionLogprobs,
    ErrorBody,
    Usage,
    encode,
)

DONE: Final = b"data: [DONE]\n\n"

# Stands for the text where a chunk is cut. What follows it is the same for all
# requests, so that its last occurrence is the right one.
_MARK: Final = "the text"


class StreamHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What all chunks of a stream have in common.

    Args:
      created: seconds since 1970.
      system_fingerprint: changes whenever the same request could get another answer.
      include_usage: a last chunk has the usage; in the others it is null.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str | None = None
    include_usage: bool = False

    def usage_field(self, usage: Usage | None) -> Usage | UnsetType | None:
        """What a chunk says of the usage: counts, null, or nothing."""
        if usage is None and not self.include_usage:
            return UNSET
        return usage


LogprobsT = TypeVar("LogprobsT")


class _Chunks(ABC, Generic[LogprobsT]):
    """Writes the events of one choice.

    Args:
      index: the choice's number: prompt number * n + sequence number.
    """

    def __init__(self, header: StreamHeader, index: int = 0) -> None:
        self._header = header
        self._index = index
        whole = self._write(_MARK)
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
          logprobs, token_ids: of the tokens that the text comes from.
          prompt_token_ids: of the prompt, in one event of the choice.
          finish_reason: makes it the choice's last event.
          stop_reason: the stop string or token that ended the choice.
          usage: the tokens so far, where every chunk is to tell them.
        """
        if (
            logprobs is None
            and token_ids is None
            and prompt_token_ids is None
            and finish_reason is None
            and usage is None
        ):
            return self._before + encode(text) + self._after
        return self._write(
            text,
            logprobs=logprobs,
            token_ids=_unless_none(token_ids),
            prompt_token_ids=_unless_none(prompt_token_ids),
            finish_reason=finish_reason,
            stop_reason=UNSET if stop_reason is None else stop_reason,
            usage=usage,
        )

    @abstractmethod
    def _write(
        self,
        text: str,
        *,
        logprobs: LogprobsT | None = None,
        token_ids: tuple[int, ...] | UnsetType = UNSET,
        prompt_token_ids: tuple[int, ...] | UnsetType = UNSET,
        finish_reason: str | None = None,
        stop_reason: int | str | UnsetType = UNSET,
        usage: Usage | None = None,
    ) -> bytes:
        """Encode a whole event."""


class ChatChunks(_Chunks[ChatLogprobs]):
    """Writes the events of one choice of a streamed chat."""

    def start(
        self,
        *,
        prompt_token_ids: tuple[int, ...] | UnsetType = UNSET,
        usage: Usage | None = None,
    ) -> bytes:
        """Write the choice's first event, which tells the role and no text yet."""
        return self._write(
            "", role="assistant", prompt_token_ids=prompt_token_ids, usage=usage
        )

    def _write(
        self,
        text: str,
        *,
        role: Literal["assistant"] | UnsetType = UNSET,
        logprobs: ChatLogprobs | None = None,
        token_ids: tuple[int, ...] | UnsetType = UNSET,
        prompt_token_ids: tuple[int, ...] | UnsetType = UNSET,
        finish_reason: str | None = None,
        stop_reason: int | str | UnsetType = UNSET,
        usage: Usage | None = None,
    ) -> bytes:
        choice = ChatChunkChoice(
            index=self._index,
            delta=self._make_delta(text, role),
            logprobs=logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            token_ids=token_ids,
        )
        header = self._header
        chunk = ChatChunk(
            id=header.id,
            created=header.created,
            model=header.model,
            system_fingerprint=header.system_fingerprint,
            prompt_token_ids=prompt_token_ids,
            choices=(choice,),
            usage=header.usage_field(usage),
        )
        return _event(chunk)

    def _make_delta(
        self, text: str, role: Literal["assistant"] | UnsetType
    ) -> ChatDelta:
        return ChatDelta(role=role, content=text)


class ReasoningChunks(ChatChunks):
    """Writes those events of a choice that are not its answer yet."""

    def _make_delta(
        self, text: str, role: Literal["assistant"] | UnsetType
    ) -> ChatDelta:
        return ChatDelta(role=role, reasoning=text)


class CompletionChunks(_Chunks[CompletionLogprobs]):
    """Writes the events of one choice of a streamed completion."""

    def _write(
        self,
        text: str,
        *,
        logprobs: CompletionLogprobs | None = None,
        token_ids: tuple[int, ...] | UnsetType = UNSET,
        prompt_token_ids: tuple[int, ...] | UnsetType = UNSET,
        finish_reason: str | None = None,
        stop_reason: int | str | UnsetType = UNSET,
        usage: Usage | None = None,
    ) -> bytes:
        choice = CompletionChunkChoice(
            index=self._index,
            prompt_token_ids=prompt_token_ids,
            text=text,
            logprobs=logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            token_ids=token_ids,
        )
        header = self._header
        chunk = CompletionChunk(
            id=header.id,
            created=header.created,
            model=header.model,
            system_fingerprint=header.system_fingerprint,
            choices=(choice,),
            usage=header.usage_field(usage),
        )
        return _event(chunk)


def chat_usage_event(header: StreamHeader, usage: Usage) -> bytes:
    """The event without choices that ends a chat which reports its usage."""
    chunk = ChatChunk(
        id=header.id,
        created=header.created,
        model=header.model,
        system_fingerprint=header.system_fingerprint,
        choices=(),
        usage=usage,
    )
    return _event(chunk)


def completion_usage_event(header: StreamHeader, usage: Usage) -> bytes:
    """The event without choices that ends a completion, as for a chat."""
    chunk = CompletionChunk(
        id=header.id,
        created=header.created,
        model=header.model,
        system_fingerprint=header.system_fingerprint,
        choices=(),
        usage=usage,
    )
    return _event(chunk)


def error_event(error: TrioserveError) -> bytes:
    """The event that tells of an error once the status 200 has been sent."""
    return _event(ErrorBody.of(error))


def _unless_none(token_ids: Sequence[int] | None) -> tuple[int, ...] | UnsetType:
    return UNSET if token_ids is None else tuple(token_ids)


def _event(data: msgspec.Struct) -> bytes:
    # JSON escapes line ends, so that the event is one line.
    return b"data: " + encode(data) + b"\n\n"
