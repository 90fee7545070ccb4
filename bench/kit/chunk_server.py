"""A server whose device costs nothing, for benches of a token's way to the client.

Only the device is a fake. Sockets, HTTP, renderer, scheduler and engine are the real
ones. The fake device takes a millisecond for a step, and almost no CPU time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
import gc
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Literal

from kit.raw import Request, ask, write_request
import trio

from trioserve.programs.http.client import RequestFailed

# The most sequences that the fake server runs at once (trioserve/testing/server.py).
MAX_STREAMS = 32

Endpoint = Literal["chat", "completions"]

_EVENT = b"data: {"


@asynccontextmanager
async def open_chunk_server(chunks_per_stream: int) -> AsyncIterator[Any]:
    """Serve streams of so many chunks until the block is left.

    Yields:
      the FakeServer of trioserve's test kit
    """
    tokenizer = find_test_kit("tokenizer").tiny_tokenizer
    open_fake_server = find_test_kit("server").open_fake_server
    with TemporaryDirectory() as folder:
        async with open_fake_server(
            tokenizer(Path(folder)), max_model_len=2 * chunks_per_stream + 64
        ) as server:
            # As in a real server: the collector skips the imported objects.
            gc.collect()
            gc.freeze()
            yield server


def find_test_kit(name: str) -> ModuleType:
    """Import a module of trioserve's test kit, from its new or its old place.

    bench/chunk_cost.py also runs checkouts in which the kit was not yet a package.
    """
    try:
        return import_module(f"trioserve.testing.{name}")
    except ModuleNotFoundError:
        return import_module(f"trioserve.testing_{name}")


def write_requests(
    endpoint: Endpoint, num_streams: int, chunks_per_stream: int
) -> Iterator[Request]:
    """Write a request for each stream."""
    for number in range(num_streams):
        text = f"Stream {number}"
        if endpoint == "chat":
            path = "/v1/chat/completions"
            prompt: dict[str, object] = {
                "messages": [{"role": "user", "content": text}]
            }
        else:
            path, prompt = "/v1/completions", {"prompt": text}
        yield write_request(
            path,
            **prompt,
            max_tokens=chunks_per_stream,
            ignore_eos=True,
            stream=True,
        )


async def read_streams(
    port: int, endpoint: Endpoint, num_streams: int, chunks_per_stream: int
) -> int:
    """Send so many requests at once, and read each stream to its end.

    Returns:
      the events of all streams. A server that is late sends several tokens in one.

    Raises:
      RequestFailed: the server refused a stream or broke it off.
    """
    num_events = 0

    async def read(request: Request) -> None:
        nonlocal num_events
        answer = await ask(port, request)
        if b"[DONE]" not in answer:
            raise RequestFailed("the stream ended early")
        num_events += answer.count(_EVENT)

    async with trio.open_nursery() as nursery:
        for request in write_requests(endpoint, num_streams, chunks_per_stream):
            nursery.start_soon(read, request)
    return num_events
