"""From the deltas of an answer to the lines of Ollama's API."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from ...errors import TrioserveError
from ...http.record.stream_meter import StreamMeter
from ...http.wire.error_body import encode
from ...types.output import TextDelta, ToolCallDelta
from ..shared.cut_object import read_arguments
from ..shared.logprobs import TokenLogprob, TokenTexts, build_chat_logprobs
from .answers import (
    ChatLine,
    GenerateLine,
    OllamaError,
    Reply,
    ReplyCall,
    ReplyFunction,
)

# Whitespace before the next line, which readers of JSON skip.
SPACE: Final = b" "

_NANOSECONDS: Final = 10**9


class MakeLine(Protocol):
    """Makes a line of an endpoint."""

    def __call__(
        self, text: str, thinking: str, calls: tuple[ReplyCall, ...], **fields: Any
    ) -> msgspec.Struct: ...


def make_chat_line(
    text: str, thinking: str, calls: tuple[ReplyCall, ...], **fields: Any
) -> ChatLine:
    reply = Reply(content=text, thinking=thinking or UNSET, tool_calls=calls or UNSET)
    return ChatLine(message=reply, **fields)


def make_generate_line(
    text: str, thinking: str, calls: tuple[ReplyCall, ...], **fields: Any
) -> GenerateLine:
    return GenerateLine(response=text, thinking=thinking or UNSET, **fields)


def make_load_line(make: MakeLine, model: str) -> msgspec.Struct:
    """Make the answer to a request that only loads the model."""
    return make("", "", (), **_stamp(model), done=True, done_reason="load")


class Lines:
    """Writes the lines of one answer.

    Args:
      make: makes a line of the endpoint.
      model: the name in the request.
      arrived_at: trio.current_time() when the request came.
      load_seconds: the time for which it waited for its model.
    """

    def __init__(
        self,
        make: MakeLine,
        model: str,
        meter: StreamMeter,
        texts: TokenTexts,
        *,
        arrived_at: float,
        load_seconds: float,
    ) -> None:
        self._make = make
        self._model = model
        self._meter = meter
        self._texts = texts
        self._arrived_at = arrived_at
        self._load_seconds = load_seconds
        self._calls = _CallCollector()
        self._reason: str | UnsetType = UNSET

    def write(self, delta: TextDelta) -> bytes:
        calls = self._calls.push(delta)
        if delta.finish_reason is not None:
            self._reason = delta.finish_reason
        logprobs = self._report(delta)
        # All text may be held back, because it may be the beginning of a stop string.
        if not (delta.text or delta.reasoning or calls or logprobs):
            return b""
        return _end_line(self._make_line(delta, calls, logprobs, done=False))

    def end(self) -> bytes:
        last = self._make(
            "", "", (), **_stamp(self._model), done=True, **self._measure()
        )
        return _end_line(last)

    def fail(self, error: TrioserveError) -> bytes:
        return _end_line(OllamaError.of(error))

    def build(self, whole: TextDelta) -> msgspec.Struct:
        """Return the whole answer in one."""
        self._reason = whole.finish_reason or UNSET
        calls = self._calls.push(whole)
        logprobs = self._report(whole)
        return self._make_line(whole, calls, logprobs, done=True, **self._measure())

    def _make_line(
        self,
        delta: TextDelta,
        calls: tuple[ReplyCall, ...],
        logprobs: tuple[TokenLogprob, ...],
        **fields: Any,
    ) -> msgspec.Struct:
        return self._make(
            delta.text,
            delta.reasoning,
            calls,
            **_stamp(self._model),
            logprobs=logprobs or UNSET,
            **fields,
        )

    def _report(self, delta: TextDelta) -> tuple[TokenLogprob, ...]:
        return build_chat_logprobs(delta.logprobs, self._texts).content

    def _measure(self) -> dict[str, Any]:
        """Return the fields of the end of an answer."""
        usage = self._meter.usage
        times = {entry.phase: entry.at for entry in self._meter.entries}
        end = times["write"]
        first = times.get("decode", end)
        began = times.get("prefill", first)
        return {
            "done_reason": self._reason,
            "total_duration": count_nanoseconds(end - self._arrived_at),
            "load_duration": count_nanoseconds(self._load_seconds),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": count_nanoseconds(first - began),
            "eval_count": usage.completion_tokens,
            "eval_duration": count_nanoseconds(end - first),
        }


class _CallCollector:
    """Puts calls together: Ollama's clients read whole ones."""

    def __init__(self) -> None:
        self._open: ToolCallDelta | None = None
        self._arguments: list[str] = []

    def push(self, delta: TextDelta) -> tuple[ReplyCall, ...]:
        """Return the calls that end with a delta."""
        calls: list[ReplyCall] = []
        begins = False
        for piece in delta.tool_calls:
            if piece.id:
                calls += self._close()
                self._open, begins = piece, True
            self._arguments.append(piece.arguments)
        # The text of a delta comes behind the rest of the open call, and before new ones.
        if delta.finish_reason is not None or (delta.text and not begins):
            calls += self._close()
        return tuple(calls)

    def _close(self) -> list[ReplyCall]:
        call = self._open
        if call is None:
            return []
        arguments = read_arguments("".join(self._arguments))
        self._open = None
        self._arguments.clear()
        function = ReplyFunction(index=call.index, name=call.name, arguments=arguments)
        return [ReplyCall(id=call.id, function=function)]


def _stamp(model: str) -> dict[str, Any]:
    return {"model": model, "created_at": datetime.now(timezone.utc)}


def count_nanoseconds(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)


def _end_line(line: msgspec.Struct) -> bytes:
    # JSON escapes line ends, so this is one line.
    return encode(line) + b"\n"
