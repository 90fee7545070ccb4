"""One request's scope: what is opened in it is closed with it, whatever happens.

quart-trio gives each request a nursery and cancels it when the client leaves. But a
response's generator is not always started, and then its `finally` never runs: so what a
handler opens lives in a stack that the connection itself closes.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
import math
from typing import TYPE_CHECKING, Any, cast

from hypercorn.typing import ASGISendCallable
from quart.wrappers import Request
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers.request import TrioBody, TrioRequest
import trio
from werkzeug.exceptions import RequestEntityTooLarge, RequestTimeout

from ..errors import MemoryFull
from .account import MemoryAccount

if TYPE_CHECKING:
    from .app import ServingApp


class ChunkedBody(TrioBody):
    """A body that is kept as it came, at the cost of an account.

    Quart gathers it in a bytearray and copies that, which holds the event loop up for
    half a millisecond each megabyte.

    Attributes:
      account: what the bodies of all requests take together.
    """

    account: MemoryAccount

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._chunks: list[bytes] = []
        self._num_bytes = 0

    def append(self, data: bytes) -> None:
        if not data or self._must_raise is not None:
            return
        limit = self._max_content_length
        if limit is not None and self._num_bytes + len(data) > limit:
            self._refuse(RequestEntityTooLarge())
        elif not self.account.take(len(data)):
            self._refuse(MemoryFull("bodies"))
        else:
            self._chunks.append(data)
            self._num_bytes += len(data)

    async def take_chunks(self) -> list[bytes]:
        """Wait for the end and hand over what came, in order.

        Raises:
          RequestEntityTooLarge, MemoryFull
        """
        if self._must_raise is None:
            await self._complete.wait()
        if self._must_raise is not None:
            raise self._must_raise
        chunks, self._chunks = self._chunks, []
        return chunks

    def release(self) -> None:
        """Tell that nothing of it is held any more."""
        self.account.give_back(self._num_bytes)
        self._num_bytes = 0
        self._chunks.clear()

    def _refuse(self, error: Exception) -> None:
        self.release()
        self._must_raise = error
        self.set_complete()


class ScopedRequest(TrioRequest):
    """A request with a place for what it opens.

    Attributes:
      resources: closed after the response has been sent or given up.
      arrived_at: trio.current_time() of the request's head.
    """

    body_class = ChunkedBody  # type: ignore[assignment]
    body: ChunkedBody
    resources: AsyncExitStack
    arrived_at: float

    async def read_chunks(self) -> list[bytes]:
        """Read the body, as its parts in order.

        Raises:
          RequestEntityTooLarge, RequestTimeout: it is too long, or too slow.
          MemoryFull: the bodies of all requests are too long together.
        """
        seconds = math.inf if self.body_timeout is None else self.body_timeout
        with trio.move_on_after(seconds):
            return await self.body.take_chunks()
        raise RequestTimeout()


class ScopedConnection(TrioASGIHTTPConnection):
    """Serves one request; the name is quart's."""

    def _create_request_from_scope(self, send: ASGISendCallable) -> Request:
        request = super()._create_request_from_scope(send)
        state = cast("ServingApp", self.app).state
        cast(ScopedRequest, request).body.account = state.bodies
        return request

    async def handle_request(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        scoped = cast(ScopedRequest, request)
        scoped.arrived_at = trio.current_time()
        lifecycle = cast("ServingApp", self.app).state.lifecycle
        async with AsyncExitStack() as scoped.resources:
            # Last in, first out: a request is running until nothing of it is left.
            scoped.resources.enter_context(lifecycle.hold())
            scoped.resources.callback(scoped.body.release)
            await super().handle_request(nursery, request, send)
