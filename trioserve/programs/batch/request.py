"""One line of the input: checked, and taken apart."""

from __future__ import annotations

from dataclasses import dataclass
import re
from typing import Any

import msgspec

from .lines import MAX_LINE_BYTES, InputLine

# No space and nothing that would end the request's first line.
_PATH = re.compile(r"/[!-\"$-~]*")


# Endpoints of Ollama's API.
_STREAMING = ("/api/chat", "/api/generate")


class _Line(msgspec.Struct):
    # Any, so that each mistake gets a sentence of its own, and the custom_id is known.
    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = msgspec.Raw(b"")


class _Body(msgspec.Struct):
    stream: Any = None
    background: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """A request that can be sent.

    Attributes:
      body: JSON.
    """

    line: InputLine
    custom_id: str
    path: str
    body: bytes


class LineRefused(Exception):
    """Raised when a line is not a request.

    Args:
      custom_id: of the line, if it could be read.
    """

    def __init__(self, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.custom_id = custom_id


def read_request(line: InputLine) -> BatchRequest:
    """Take a line apart.

    Raises:
      LineRefused
    """
    if line.is_too_long:
        raise LineRefused(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        fields = msgspec.json.decode(line.text, type=_Line)
    except msgspec.ValidationError:
        raise LineRefused("the line must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LineRefused(f"the line is not JSON: {error}") from None
    if not isinstance(fields.custom_id, str) or not fields.custom_id:
        raise LineRefused("custom_id must be a text")
    if reason := _find_mistake(fields):
        raise LineRefused(reason, fields.custom_id)
    return BatchRequest(
        line=line,
        custom_id=fields.custom_id,
        path=fields.url,
        body=bytes(fields.body),
    )


def _find_mistake(fields: _Line) -> str:
    if fields.method != "POST":
        return "method must be POST"
    if not isinstance(fields.url, str) or not _PATH.fullmatch(fields.url):
        return "url must be the path of an endpoint, such as /v1/chat/completions"
    try:
        body = msgspec.json.decode(fields.body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "body must be a JSON object"
    if body.stream:
        return "stream is not possible in a batch"
    if fields.url in _STREAMING and body.stream is None:
        return "stream must be false in a batch; by default, this endpoint streams"
    if body.background:
        return "background is not possible in a batch"
    return ""
