"""One request's scope: what is opened in it is closed with it, whatever happens.

quart-trio gives each request a nursery and cancels it when the client leaves. But a
response's generator is not always started, and then its `finally` never runs: so what a
handler opens lives in a stack that the connection itself closes.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, cast

from hypercorn.typing import ASGISendCallable
from quart.wrappers import Request
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest
import trio

if TYPE_CHECKING:
    from .app import ServingApp


class ScopedRequest(TrioRequest):
    """A request with a place for what it opens.

    Attributes:
      resources: closed after the response has been sent or given up.
      arrived_at: trio.current_time() of the request's head.
    """

    resources: AsyncExitStack
    arrived_at: float


class ScopedConnection(TrioASGIHTTPConnection):
    """Serves one request; the name is quart's."""

    async def handle_request(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        scoped = cast(ScopedRequest, request)
        scoped.arrived_at = trio.current_time()
        lifecycle = cast("ServingApp", self.app).state.lifecycle
        async with AsyncExitStack() as scoped.resources:
            # Last in, first out: a request is running until nothing of it is left.
            scoped.resources.enter_context(lifecycle.hold())
            await super().handle_request(nursery, request, send)
