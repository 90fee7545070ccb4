"""What the bodies of all requests take together is bounded."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2 as httpx
import pytest
import trio

from trioserve.config import HttpConfig
from trioserve.errors import InvalidConfig
from trioserve.http.account import MemoryAccount
from trioserve.testing_server import FakeServer, open_fake_server

PATH = "/v1/completions"
HALF = b" " * 700_000


@pytest.fixture
async def server(tokenizer_folder: Path) -> FakeServer:
    config = HttpConfig(max_body_size="1MiB", max_bodies_memory="1MiB")
    async with open_fake_server(tokenizer_folder, http=config) as server:
        with trio.fail_after(30):
            yield server


@pytest.fixture
async def client(server: FakeServer) -> httpx.AsyncClient:
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        yield client


def test_an_account_takes_what_it_has_room_for() -> None:
    account = MemoryAccount(10)
    assert account.take(6) and account.take(4)
    assert not account.take(1)
    account.give_back(4)
    assert account.take(4) and account.num_bytes == 10
    with pytest.raises(AssertionError):
        account.give_back(11)


def test_one_body_always_fits() -> None:
    with pytest.raises(InvalidConfig, match="max-bodies-memory"):
        HttpConfig(max_body_size="2MiB", max_bodies_memory="1MiB")


class Upload:
    """A body that pauses at each event in it."""

    def __init__(self, *parts: bytes | trio.Event) -> None:
        self._parts = list(parts)

    def __aiter__(self) -> Upload:
        return self

    async def __anext__(self) -> bytes:
        while self._parts:
            part = self._parts.pop(0)
            if isinstance(part, bytes):
                return part
            await part.wait()
        raise StopAsyncIteration


async def wait_for_bytes(server: FakeServer, num_bytes: int) -> None:
    while server.state.bodies.num_bytes < num_bytes:
        await trio.sleep(0.001)


async def post(client: httpx.AsyncClient, content: object) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return await client.post(PATH, content=content, headers=headers)


async def test_a_body_that_does_not_fit_beside_others_is_503(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    may_end = trio.Event()
    answers: list[httpx.Response] = []

    async def ask() -> None:
        answers.append(await post(client, Upload(HALF, may_end, body)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await wait_for_bytes(server, len(HALF))
        refused = await post(client, HALF + body)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        # Nothing can follow a body that was not read to its end.
        assert refused.headers["connection"] == "close"
        # What it had sent is not counted any more, and small ones are taken.
        assert (await post(client, body)).status_code == 200
        may_end.set()
    assert answers[0].status_code == 200
    assert (await post(client, HALF + body)).status_code == 200
    metrics = (await client.get("/metrics")).text
    assert "trioserve_http_bodies_bytes 0.0" in metrics


async def test_a_stream_does_not_hold_its_body(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 200, "stream": True}).encode()
    headers = {"content-type": "application/json"}
    async with client.stream(
        "POST", PATH, content=HALF + body, headers=headers
    ) as response:
        num_streams = []
        async for _ in response.aiter_lines():
            assert server.state.bodies.num_bytes == 0
            num_streams.append(server.engine.statistics().num_streams)
    assert num_streams[0] == 1


async def test_a_client_that_leaves_while_it_uploads_leaves_nothing(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(post, client, Upload(HALF, trio.Event()))
        await wait_for_bytes(server, len(HALF))
        nursery.cancel_scope.cancel()
    while server.state.bodies.num_bytes:
        await trio.sleep(0.001)
