"""The lifespan of an ASGI app, as its server sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio


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
