"""Streams that a client takes up again, on the path of its first request."""

from __future__ import annotations

from functools import partial

from quart import Response
import trio

from ...api.shared.sse import respond_stream, send_log
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.streams.resumable import HEADER, ResumableStream


def resume_stream(state: ServerState, request: ScopedRequest) -> Response:
    """Answer with the events behind the one that the client has seen last.

    Raises:
      StreamNotFound
      ShuttingDown: the server drains.
    """
    state.lifecycle.check_open()
    assert request.url_rule is not None, "the path has a route"
    stream, number = state.resumable.find(
        request.headers[HEADER], request.live.key, request.url_rule.rule
    )
    connection = stream.claim(number)
    # Also if the answer never begins.
    request.resources.callback(stream.release, connection)
    state.resumable.num_resumed += 1
    request.live.stream = request.meter = stream.meter
    request.progress.follow(stream.meter)
    return respond_stream(partial(_send, request, stream, connection, number))


async def _send(
    request: ScopedRequest,
    stream: ResumableStream,
    connection: trio.CancelScope,
    number: int,
) -> bytes:
    async with request.open_events(stream.comment) as events:
        return await send_log(request, events, stream, connection, number)
