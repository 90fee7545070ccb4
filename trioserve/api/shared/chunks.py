"""The server-sent events of one streamed answer, as bytes.

Most chunks of a choice differ in their text alone. So one chunk is encoded in advance and
split at its text, and each token only needs the encoding of its own text. Chunks with
other fields are encoded completely. bench/chunk_encoding.py measures both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ...errors import TrioserveError
from ...http.record.stream_meter import StreamMeter
from ...http.record.usage import Usage
from ...http.wire.error_body import ErrorBody, encode
from ...types.output import TextDelta
from .requests import GenerationRequest

DONE: Final = b"data: [DONE]\n\n"

# The text of the chunk that is split. The rest of the chunk is the same for all requests,
# so the last occurrence is the right one.
_MARK: Final = "the text"


class StreamHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that all chunks of a stream share.

    Args:
      created: seconds since 1970.
      system_fingerprint: changes if the same request could get another answer.
      no_usage: stands for the usage in chunks without it: null if the last chunk has it,
        and no field otherwise.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str | None = None
    no_usage: UnsetType | None = UNSET


LogprobsT = TypeVar("LogprobsT")


class ChunkFields(
    msgspec.Struct, Generic[LogprobsT], frozen=True, kw_only=True, gc=False
):
    """The fields of an event besides its text; see Chunks.text."""

    logprobs: LogprobsT | None = None
    token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType = UNSET
    usage: Usage | None = None


class Chunks(ABC, Generic[LogprobsT]):
    """Writes the events of one choice.

    Args:
      index: the choice's number: prompt number * n + sequence number.
    """

    def __init__(self, header: StreamHeader, index: int = 0) -> None:
        self._header = header
        self._index = index
        whole = self._write(_MARK, ChunkFields())
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
            return self.piece(text)
        fields = ChunkFields(
            logprobs=logprobs,
            token_ids=_unless_none(token_ids),
            prompt_token_ids=_unless_none(prompt_token_ids),
            finish_reason=finish_reason,
            stop_reason=UNSET if stop_reason is None else stop_reason,
            usage=usage,
        )
        return self._write(text, fields)

    def piece(self, text: str) -> bytes:
        """Write an event that has a text alone."""
        return self._before + encode(text) + self._after

    @abstractmethod
    def _write(self, text: str, fields: ChunkFields[LogprobsT]) -> bytes:
        """Encode an event completely."""


RequestT = TypeVar("RequestT", bound=GenerationRequest)
ChunksT = TypeVar("ChunksT", bound=Chunks[Any])


class ChunkEvents(ABC, Generic[RequestT, ChunksT]):
    """Writes the events of a stream of chunks.

    Attributes:
      chunk_type: the struct of a chunk.
      chunks: of the choices that have begun, by index.
    """

    chunk_type: Callable[..., msgspec.Struct]

    def __init__(
        self, body: RequestT, header: StreamHeader, meter: StreamMeter
    ) -> None:
        self.body = body
        self.header = header
        self.meter = meter
        self.chunks: dict[int, ChunksT] = {}
        self._reports_continuously = body.reports_usage_continuously
        self._shows_text_alone = not (
            self._reports_continuously or body.return_token_ids
        )

    def write(self, delta: TextDelta) -> bytes:
        """Return the events of a delta; empty if the delta has nothing to report."""
        chunks = self.chunks.get(delta.index)
        # Nearly all deltas are a piece of the text of a choice that has begun.
        if (
            chunks is not None
            and self._shows_text_alone
            and delta.text
            and not (delta.reasoning or delta.tool_calls)
            and not (delta.finish_reason or delta.logprobs)
        ):
            return chunks.piece(delta.text)
        return self.write_all(delta)

    @abstractmethod
    def write_all(self, delta: TextDelta) -> bytes:
        """Return the events of a delta, with all that the client may want to see."""

    def end(self) -> bytes:
        """Return the events behind the last delta: the usage, in a chunk without choices."""
        if not self.body.reports_usage:
            return DONE
        header = self.header
        chunk = self.chunk_type(
            id=header.id,
            created=header.created,
            model=header.model,
            system_fingerprint=header.system_fingerprint,
            choices=(),
            usage=self.meter.usage,
            metrics=self.meter.metrics if self.body.return_metrics else UNSET,
        )
        return write_event(chunk) + DONE

    def fail(self, error: TrioserveError) -> bytes:
        """Return the events of an error that occurs after the status 200 was sent."""
        return write_event(ErrorBody.of(error)) + DONE

    def current_usage(self, without: int = 0) -> Usage | None:
        """Return the usage so far, less some output tokens, if the client wants it."""
        if not self._reports_continuously:
            return None
        usage = self.meter.usage
        return usage.without(without) if without else usage


def _unless_none(token_ids: Sequence[int] | None) -> tuple[int, ...] | UnsetType:
    return UNSET if token_ids is None else tuple(token_ids)


def write_event(data: msgspec.Struct) -> bytes:
    """Write one event."""
    # JSON escapes line ends, so the event is one line.
    return b"data: " + encode(data) + b"\n\n"
