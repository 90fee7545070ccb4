"""The end of a request on its connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from hypercorn.protocol.events import Event as StreamEvent, StreamClosed
import trio

# The end of a request must not be cancelled with it, and must not last either.
CLOSE_SECONDS = 5.0


async def finish(
    send: Callable[[StreamEvent], Awaitable[None]], event: StreamClosed
) -> None:
    """Let a request's cancel not reach what its connection does once it is over.

    quart-trio cancels a request as soon as it hears http.disconnect. It hears that
    within its own last send, before hypercorn has armed the keep-alive timeout,
    turned to the next request, or closed.
    """
    with trio.move_on_after(CLOSE_SECONDS, shield=True):
        await send(event)
