"""The server answers probes while its model is loaded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import trio

from trioserve.config import ServeConfig, build_config
from trioserve.errors import WeightsNotFound
from trioserve.frontend import PoolingEngine, TextEngine
from trioserve.startup import http_server
from trioserve.startup.address import open_address
from trioserve.startup.http_server import HttpServer
from trioserve.testing.server import open_fake_server

PROMPT = {"prompt": "Hi", "max_tokens": 3}
Engine = TextEngine | PoolingEngine


@pytest.fixture(autouse=True)
def plain_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the interpreter of the tests as it is."""

    async def settle() -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(http_server, "prepare_interpreter", lambda: None)
    monkeypatch.setattr(http_server, "settle_interpreter", settle)


class Load:
    """The load of a model, which ends when the test says so.

    Attributes:
      may_end: set by the test.
      num_open: engines that are open.
      error: raised at the end of the load.
    """

    def __init__(self, folder: Path) -> None:
        self.may_end = trio.Event()
        self.num_open = 0
        self.error: Exception | None = None
        self._folder = folder

    @asynccontextmanager
    async def open_engine(self) -> AsyncIterator[Engine]:
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        async with open_fake_server(self._folder) as fake:
            assert fake.state.engine is not None
            self.num_open += 1
            yield fake.state.engine
            self.num_open -= 1


@asynccontextmanager
async def open_server(
    load: Load, on_ready: Callable[[str], None], **options: Any
) -> AsyncIterator[tuple[HttpServer, httpx.AsyncClient, trio.Event]]:
    """Serve, without waiting for the model; the event is set at the end of the server."""
    has_ended = trio.Event()
    config = build_config(ServeConfig, {"port": 0})
    with open_address(config.bind) as sock, trio.fail_after(60):
        port = sock.getsockname()[1]
        server = HttpServer(config, sock)

        async def serve() -> None:
            await server.serve(
                load.open_engine, on_ready, server.state.finish_drain, **options
            )
            has_ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)  # noqa: ASYNC113 (clients wait for it)
            url = f"http://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=url, timeout=60) as client:
                yield server, client, has_ended
            nursery.cancel_scope.cancel()


async def wait_listening(client: httpx.AsyncClient) -> httpx.Response:
    while True:
        try:
            return await client.get("/livez")
        except httpx.ConnectError:
            await trio.sleep(0.01)


async def read_statuses(client: httpx.AsyncClient) -> dict[str, int]:
    return {
        path: (await client.get(path)).status_code
        for path in ("/livez", "/readyz", "/health", "/progressz", "/metrics", "/")
    }


async def test_probes_are_answered_while_the_model_is_loaded(
    tokenizer_folder: Path,
) -> None:
    load, ready = Load(tokenizer_folder), list[str]()
    async with open_server(load, ready.append) as (server, client, has_ended):
        assert (await wait_listening(client)).status_code == 200
        assert await read_statuses(client) == {
            **{"/livez": 200, "/readyz": 503, "/health": 503},
            **{"/progressz": 200, "/metrics": 200, "/": 200},
        }
        for path in ("/v1/completions", "/invocations"):
            answer = await client.post(path, json=PROMPT)
            assert answer.status_code == 503
            assert answer.headers["Retry-After"] == "10"
            assert answer.json()["error"]["message"] == "The model is being loaded."
        assert not ready
        load.may_end.set()
        while not ready:
            await trio.sleep(0.01)
        assert {*(await read_statuses(client)).values()} == {200}
        assert (await client.post("/v1/completions", json=PROMPT)).status_code == 200
        assert load.num_open == 1
        server.state.lifecycle.begin_drain()
        await has_ended.wait()
        assert load.num_open == 0


async def test_a_load_that_fails_ends_the_server(tokenizer_folder: Path) -> None:
    load = Load(tokenizer_folder)
    load.error = WeightsNotFound("m", "there is no such folder")
    with pytest.RaisesGroup(WeightsNotFound, flatten_subgroups=True):
        async with open_server(load, lambda _: None) as (_, client, has_ended):
            await wait_listening(client)
            load.may_end.set()
            await trio.sleep_forever()


async def test_a_server_beside_others_listens_when_its_model_is_loaded(
    tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen, seen = http_server.start_listening, list[int]()

    def start_listening(*arguments: Any) -> None:
        seen.append(load.num_open)
        listen(*arguments)

    monkeypatch.setattr(http_server, "start_listening", start_listening)
    load, ready = Load(tokenizer_folder), list[str]()
    load.may_end.set()
    async with open_server(load, ready.append, waits_for_engine=True) as opened:
        _, client, _ = opened
        await wait_listening(client)
        assert (await client.get("/readyz")).status_code == 200
    assert seen == [1]
