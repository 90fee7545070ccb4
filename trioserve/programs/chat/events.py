"""Server-sent events, as OpenAI-compatible servers stream answers."""

from __future__ import annotations

from collections.abc import Iterator
import json
from typing import Any, Final

import msgspec

from ...errors.error_bodies import find_reason
from .answers import AnswerFailed, Piece

# A line holds a few tokens; with a longer one the server is none of these.
_MAX_LINE: Final = 16 * 2**20


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    # vLLM and trioserve say reasoning, llama-server and DeepSeek reasoning_content.
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    error: Any = None


class EventReader:
    """Turns the bytes of a stream into pieces.

    Attributes:
      has_ended: the server has said that the answer is complete.
    """

    def __init__(self) -> None:
        self.has_ended = False
        self._line = bytearray()

    def read(self, part: bytes) -> Iterator[Piece]:
        """Yield the pieces that a part of the stream completes.

        Raises:
          AnswerFailed: the server reports an error, or sends something else.
        """
        *lines, rest = part.split(b"\n")
        for line in lines:
            self._line += line
            whole = bytes(self._line)
            self._line.clear()
            yield from self._read_line(whole.rstrip(b"\r"))
        self._line += rest
        if len(self._line) > _MAX_LINE:
            raise AnswerFailed("the server sends no events that a chat could show")

    def _read_line(self, line: bytes) -> Iterator[Piece]:
        name, _, data = line.partition(b":")
        if name != b"data":
            return
        data = data.strip()
        if data == b"[DONE]":
            self.has_ended = True
            return
        chunk = self._decode(data)
        for choice in chunk.choices[:1]:
            delta = choice.delta
            if choice.finish_reason is not None:
                self.has_ended = True
            yield Piece(
                text=delta.content or "",
                reasoning=delta.reasoning or delta.reasoning_content or "",
                finish_reason=choice.finish_reason,
            )

    def _decode(self, data: bytes) -> _Chunk:
        try:
            # msgspec would refuse half a character, which a server may send as an escape.
            chunk = msgspec.convert(json.loads(data), type=_Chunk)
        except (ValueError, RecursionError):
            raise AnswerFailed(
                "the server sends no events that a chat could show"
            ) from None
        if chunk.error is not None:
            raise AnswerFailed(
                f"the server broke the answer off: {find_reason(chunk.error)}"
            )
        return chunk
