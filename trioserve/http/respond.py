"""Answers that are not streamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from quart import Response

from ..errors import TrioserveError, Unavailable
from ..render import RendererWorkers
from .wire.responses import ErrorBody, encode

# A microsecond or two each to write.
_FEW_ENTRIES: Final = 512

# A server whose engine has ended needs about as long until somebody has restarted it.
_RESTART_SECONDS: Final = 10


def respond_json(
    content: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(encode(content), status, headers, content_type="application/json")


def respond_error(
    error: TrioserveError,
    status: int | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """Answer with an error, and say with 429 and 503 when to come again.

    Args:
      status: in place of the error's own.
    """
    status = status or error.status
    headers = dict(headers or {})
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(error.retry_after_seconds)
    elif status == 503:
        headers["Retry-After"] = str(_RESTART_SECONDS)
    return respond_json(ErrorBody.of(error), status, headers)


async def respond_built(
    workers: RendererWorkers, build: Callable[[], msgspec.Struct], num_entries: int
) -> Response:
    """Build and encode an answer; num_entries as in run_writing."""
    content = await run_writing(workers, lambda: encode(build()), num_entries)
    return Response(content, content_type="application/json")


async def run_writing(
    workers: RendererWorkers, write: Callable[[], bytes], num_entries: int
) -> bytes:
    """Write an answer, in a renderer worker where it would hold the loop up.

    Args:
      num_entries: tokens and log probabilities that it shows, and what takes as long;
        what else an answer has takes microseconds.
    """
    return write() if num_entries <= _FEW_ENTRIES else await workers.run(write)
