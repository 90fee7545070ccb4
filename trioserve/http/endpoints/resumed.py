"""Streams that a client takes up again, on the path of its first request."""

from __future__ import annotations

from functools import partial

from quart import Response

from ..connection.scope import ScopedRequest
from ..event_connection import open_events
from ..resumable import HEADER, ResumableStream
from ..state import ServerState
from .sse import respond_stream, send_log


def resume_stream(state: ServerState, request: ScopedRequest) -> Response:
    """Answer with the events behind the one that the client has seen last.

    Raises:
      StreamNotFound
      ShuttingDown: the server drains.
    """
    state.lifecycle.check_open()
    stream, number = state.resumable.find(request.headers[HEADER], request.live.key)
    state.resumable.num_resumed += 1
    request.live.stream = stream.live.stream
    return respond_stream(partial(_send, request, stream, number))


async def _send(request: ScopedRequest, stream: ResumableStream, number: int) -> bytes:
    async with open_events(request) as connection:
        return await send_log(connection, stream, number)
