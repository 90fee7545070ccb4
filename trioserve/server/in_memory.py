"""Calls the app in memory, as a connection would: no port, no socket, the same answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote

import trio

from ..http.connection import PEER, Peer
from .admin.probes import AsgiApp

# Of all requests. A client that is in the process needs no address.
_SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.1"},
    "http_version": "1.1",
    "method": "POST",
    "scheme": "http",
    "root_path": "",
    "client": None,
    "server": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAnswer:
    """A whole answer.

    Attributes:
      fields: the names, in lower case, and the values of its headers.
    """

    status: int
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes


class MemoryClient:
    """Sends requests to an app whose lifespan has begun.

    Args:
      app: a ServingApp.
    """

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def post(self, target: str, body: bytes) -> MemoryAnswer:
        """Send a body of JSON, and return the whole answer.

        To cancel this call ends the request, as a client does that leaves.

        Args:
          target: the path, and perhaps a query.
        """
        path, _, query = target.partition("?")
        scope: dict[str, Any] = {
            **_SCOPE,
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ],
            "state": {},
            "extensions": {},
        }
        exchange = _Exchange(scope, body)
        app = cast(Any, self._app)
        await app(scope, exchange.receive, exchange.send)
        return exchange.finish()


class _Exchange:
    """One request and its answer."""

    def __init__(self, scope: dict[str, Any], body: bytes) -> None:
        self._scope = scope
        self._body: bytes | None = body
        self._is_answered = trio.Event()
        self._status = 500
        self._fields: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []

    async def receive(self) -> dict[str, object]:
        body, self._body = self._body, None
        if body is not None:
            await trio.lowlevel.checkpoint()
            return {"type": "http.request", "body": body, "more_body": False}
        await self._is_answered.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: dict[str, Any]) -> None:
        if event["type"] == "http.response.start":
            self._status = event["status"]
            self._fields = [*event["headers"]]
        elif event["type"] == "http.response.body":
            self._parts.append(bytes(event.get("body", b"")))
            if not event.get("more_body", False):
                # Otherwise the app counts the request as cancelled.
                peer = cast(Peer, self._scope["extensions"][PEER])
                peer.is_answered = True
                self._is_answered.set()
        await trio.lowlevel.checkpoint()

    def finish(self) -> MemoryAnswer:
        assert self._is_answered.is_set(), "the app answers each request to its end"
        return MemoryAnswer(
            status=self._status,
            fields=tuple((bytes(n).lower(), bytes(v)) for n, v in self._fields),
            body=b"".join(self._parts),
        )


@asynccontextmanager
async def open_lifespan(app: Any) -> AsyncIterator[None]:
    """Start an app, and shut it down at the end of the block.

    For servers that are not hypercorn: a simulated one, and a caller in memory.

    Source: the ASGI specification, "Lifespan Protocol".
    """
    to_app, from_server = trio.open_memory_channel[dict[str, str]](2)
    to_server, from_app = trio.open_memory_channel[dict[str, str]](2)
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}

    async def tell(word: str) -> None:
        await to_app.send({"type": f"lifespan.{word}"})
        answer = await from_app.receive()
        assert answer["type"] == f"lifespan.{word}.complete", answer

    async with trio.open_nursery() as nursery:
        nursery.start_soon(app, scope, from_server.receive, to_server.send)
        await tell("startup")
        yield
        await tell("shutdown")
        # As hypercorn does: quart's background tasks would take seconds more.
        nursery.cancel_scope.cancel()
