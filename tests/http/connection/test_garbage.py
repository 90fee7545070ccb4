"""A request's objects are free when its connection ends, without the garbage collector.

Objects that refer to each other stay until the collector finds them. Under load that is a
pass over all objects, which stops the event loop for as long as 30 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import gc

import pytest
from raw_http import send, write_post
import trio
import trio.testing

from trioserve.http.connection.server import GuardedServer
from trioserve.testing.server import FakeServer

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CHAT = {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL]}

pytestmark = pytest.mark.usefixtures("frozen_heap")

# The path, the body, and whether the client leaves in the middle of the answer.
REQUESTS = {
    "answer": ("/v1/completions", {"prompt": "a", "max_tokens": 3, "n": 2}, False),
    "stream": ("/v1/chat/completions", {**CHAT, "stream": True}, False),
    "responses": ("/v1/responses", {"input": "a", "stream": True}, False),
    "bad": ("/v1/completions", {"prompt": "a", "max_tokens": -1}, False),
    "late": (
        "/v1/completions",
        {"prompt": "a", "timeout": 0.02, "stream": True},
        False,
    ),
    "vanished": ("/v1/completions", {"prompt": "a", "stream": True}, True),
}


@pytest.mark.parametrize("kind", REQUESTS)
async def test_an_ended_request_leaves_nothing_to_the_collector(
    server: FakeServer, kind: str
) -> None:
    # The first one fills caches.
    await ask(server, *REQUESTS[kind])
    with collected_garbage() as garbage:
        for _ in range(3):
            await ask(server, *REQUESTS[kind])
    types = {f"{type(each).__module__}.{type(each).__name__}" for each in garbage}
    assert not {name for name in types if name.startswith(("trioserve", "hypercorn"))}


async def ask(
    server: FakeServer, path: str, body: dict[str, object], is_leaving: bool
) -> None:
    """Send a request on a connection of its own, and wait until the server forgets it."""
    packet = write_post(path, body, Connection="close")
    async with send(server.port, packet) as client:
        async for _ in client:
            if is_leaving:
                break
    while (
        server.state.lifecycle.num_active
        or GuardedServer.connections.list_descriptors()
    ):
        await trio.sleep(0.001)
    await trio.testing.wait_all_tasks_blocked()


@contextmanager
def collected_garbage() -> Iterator[list[object]]:
    """Yield a list that has the garbage of the block, once the block is left."""
    garbage: list[object] = []
    gc.collect()
    gc.disable()
    try:
        yield garbage
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
    finally:
        gc.set_debug(0)
        gc.enable()
        garbage += gc.garbage
        gc.garbage.clear()
