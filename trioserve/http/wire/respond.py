"""Answers that are not streamed, and the content types of all answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
from quart import Response

from ...errors import TrioserveError, Unavailable
from ...render import RendererWorkers
from .error_body import ErrorBody, encode

T = TypeVar("T")

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
# Lines of JSON.
LINES: Final = "application/x-ndjson"
TEXT: Final = "text/plain"
BYTES: Final = "application/octet-stream"

# Each entry takes one or two microseconds to write.
_FEW_ENTRIES: Final = 512

# A server whose engine has failed is restarted in about this time.
_RESTART_SECONDS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainAnswer:
    """An answer that knows no framework.

    Attributes:
      headers: in addition to Content-Type and Content-Length.
    """

    content: bytes
    content_type: str
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    def to_response(self) -> Response:
        return Response(
            self.content, self.status, self.headers, content_type=self.content_type
        )

    def list_fields(self) -> list[tuple[bytes, bytes]]:
        """Return all headers as ASGI has them, in the order of a Response."""
        fields = self.headers | {
            "Content-Type": self.content_type,
            "Content-Length": str(len(self.content)),
        }
        return [(k.lower().encode(), v.encode()) for k, v in fields.items()]


def make_json(
    content: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None
) -> PlainAnswer:
    return PlainAnswer(
        content=encode(content),
        content_type=JSON,
        status=status,
        headers=headers or {},
    )


def make_error(
    error: TrioserveError,
    status: int | None = None,
    headers: dict[str, str] | None = None,
    body: msgspec.Struct | None = None,
) -> PlainAnswer:
    """Make the answer to an error. An answer that says to try again later says when.

    Args:
      status: replaces the error's own status.
      body: replaces the body in OpenAI's shape.
    """
    status = status or error.status
    headers = dict(headers or {})
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(error.retry_after_seconds)
    elif status == 503:
        headers["Retry-After"] = str(_RESTART_SECONDS)
    return make_json(body or ErrorBody.of(error), status, headers)


def respond_json(content: msgspec.Struct) -> Response:
    return make_json(content).to_response()


async def respond_built(
    workers: RendererWorkers, build: Callable[[], msgspec.Struct], num_entries: int
) -> Response:
    """Build and encode an answer; see run_writing for num_entries."""
    content = await run_writing(workers, lambda: encode(build()), num_entries)
    return Response(content, content_type=JSON)


async def run_writing(
    workers: RendererWorkers, write: Callable[[], T], num_entries: int
) -> T:
    """Write an answer, in a renderer worker if it would block the event loop for long.

    Args:
      write: writes all of the answer, or a part of it.
      num_entries: the number of tokens and log probabilities in the answer. All other
        parts of an answer take microseconds.
    """
    return write() if num_entries <= _FEW_ENTRIES else await workers.run(write)
