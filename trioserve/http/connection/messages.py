"""Hands the last messages of a request to its app at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from hypercorn.typing import ASGIReceiveEvent
import trio

Put = Callable[[ASGIReceiveEvent], Awaitable[None]]


def put_at_once(put: Put) -> Put:
    """Return a `put` that yields to other tasks for parts of a body alone.

    hypercorn's also yields at the end of the body and at the end of the request. That is
    two turns of the event loop more for each request.

    Args:
      put: the `send` of a memory channel, from spawn_app.
    """
    channel = cast(trio.MemorySendChannel[ASGIReceiveEvent], put.__self__)  # type: ignore

    async def put_message(message: ASGIReceiveEvent) -> None:
        if message["type"] == "http.request" and message["more_body"]:
            await put(message)
            return
        try:
            channel.send_nowait(message)
        except trio.WouldBlock:
            await put(message)

    return put_message
