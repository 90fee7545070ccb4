"""The end of a request on its connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from hypercorn.protocol.events import Event as StreamEvent, StreamClosed
import trio

# The end of a request must not be cancelled with the request, and must not take long.
CLOSE_SECONDS = 5.0


async def finish(
    send: Callable[[StreamEvent], Awaitable[None]], event: StreamClosed
) -> None:
    """Send the last event of a request, shielded from the request's cancellation.

    quart-trio cancels a request as soon as it receives http.disconnect. It receives that
    within its own last send: before hypercorn has set the keep-alive timeout, begun the
    next request, or closed the connection.
    """
    with trio.move_on_after(CLOSE_SECONDS, shield=True):
        await send(event)
