"""Pages of other origins, a path of a proxy in front, and limits of connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from raw_http import write_post
import trio

from trioserve.config import HttpConfig
from trioserve.errors import InvalidConfig
from trioserve.http.state import ServerState
from trioserve.server.app import create_http_app
from trioserve.testing.server import FakeServer, open_fake_server

CHAT_PATH = "/v1/chat/completions"
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
ORIGIN = "https://chat.example"
STRANGER = "https://chat.example.org"
ALLOW = "access-control-allow-origin"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}

Open = Callable[..., Any]
Connect = Callable[[int], Awaitable[trio.SocketStream]]


@pytest.fixture
def open_client(tokenizer_folder: Path) -> Open:
    @asynccontextmanager
    async def open_it(**http: Any) -> AsyncIterator[httpx.AsyncClient]:
        config = HttpConfig(**http)
        async with open_fake_server(tokenizer_folder, http=config) as server:
            async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
                yield client

    return open_it


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ((), {ORIGIN: None}),
        (
            ("http://localhost:3000", ORIGIN),
            {ORIGIN: ORIGIN, STRANGER: None, "null": None, None: None},
        ),
        (("*", ORIGIN), {STRANGER: "*", ORIGIN: "*", None: None}),
    ],
)
async def test_pages_of_allowed_origins_alone_may_read_answers(
    open_client: Open,
    allowed: tuple[str, ...],
    expected: dict[str | None, str | None],
) -> None:
    answers = []
    async with open_client(allowed_origins=allowed) as client:
        for origin, allows in expected.items():
            headers = {} if origin is None else {"Origin": origin}
            answers += [
                (allows, await client.request(method, path, json=body, headers=headers))
                for method, path, body in (
                    ("GET", "/health", None),
                    ("GET", "/nothing", None),
                    ("POST", CHAT_PATH, CHAT),
                    ("POST", CHAT_PATH, CHAT | {"stream": True}),
                )
            ]
    for allows, answer in answers:
        assert answer.headers.get(ALLOW) == allows
        exposed = answer.headers.get("access-control-expose-headers", "")
        assert bool(allows) == (
            {"X-Request-Id", "Retry-After", "X-Should-Retry"} <= {*exposed.split(", ")}
        )
        # Without it, a cache could give the answer to another page.
        is_specific = bool(allowed) and "*" not in allowed
        assert (answer.headers.get("vary") == "Origin") == is_specific


async def test_browsers_ask_first_without_a_key(open_client: Open) -> None:
    async with open_client(allowed_origins=(ORIGIN,), api_key=("sk-a",)) as client:

        async def ask(origin: str, **headers: str) -> httpx.Response:
            sent = {"Origin": origin} | headers
            return await client.request("OPTIONS", CHAT_PATH, headers=sent)

        answer = await ask(ORIGIN, **PREFLIGHT)
        assert answer.status_code == 200
        assert answer.headers[ALLOW] == ORIGIN
        assert answer.headers["access-control-allow-methods"] == "DELETE, GET, POST"
        allowed = answer.headers["access-control-allow-headers"]
        assert allowed == PREFLIGHT["Access-Control-Request-Headers"]
        assert int(answer.headers["access-control-max-age"]) > 0
        odd = await ask(ORIGIN, **PREFLIGHT | {"Access-Control-Request-Headers": "a:b"})
        assert "access-control-allow-headers" not in odd.headers
        # Others are strangers, and so is who asks something else.
        assert (await ask(STRANGER, **PREFLIGHT)).status_code == 401
        assert (await ask(ORIGIN)).status_code == 401
        # A page without a key can read why it is refused.
        refused = await client.post(CHAT_PATH, json=CHAT, headers={"Origin": ORIGIN})
        assert (refused.status_code, refused.headers[ALLOW]) == (401, ORIGIN)


@pytest.mark.parametrize("prefix", ["", "/llm/a"])
async def test_a_proxy_may_cut_its_path_off_or_not(
    open_client: Open, prefix: str
) -> None:
    async with open_client(root_path="/llm/a") as client:
        assert (await client.get(f"{prefix}/health")).status_code == 200
        assert (await client.get(f"{prefix}/v1/models/fake")).json()["id"] == "fake"
        answer = await client.post(f"{prefix}{CHAT_PATH}", json=CHAT)
        assert answer.status_code == 200
        refused = await client.post(f"{prefix}/v1/messages", json={})
        assert refused.json()["type"] == "error"
        document = (await client.get(f"{prefix}/openapi.json")).json()
    assert document["servers"] == [{"url": "/llm/a"}]
    assert CHAT_PATH in document["paths"]


async def test_other_paths_stay_as_they_are(open_client: Open) -> None:
    async with open_client(root_path="/llm") as client:
        for path in ("/llmhealth", "/health/llm", "/llm/llm/health"):
            assert (await client.get(path)).status_code == 404
        streamed = await client.post(f"/llm{CHAT_PATH}", json=CHAT | {"stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n")
    async with open_client() as client:
        assert "servers" not in (await client.get("/openapi.json")).json()


@pytest.fixture
async def connect(server: FakeServer) -> AsyncIterator[Connect]:
    """Return a function that connects from one of the addresses of this machine."""
    async with AsyncExitStack() as clients:

        async def connect_from(number: int) -> trio.SocketStream:
            client = await trio.open_tcp_stream(
                "127.0.0.1", server.port, local_address=f"127.0.0.{number}"
            )
            return await clients.enter_async_context(client)

        yield connect_from


async def begin(client: trio.SocketStream) -> None:
    """Begin a stream that lasts longer than the test."""
    body = {"prompt": "a", "max_tokens": 200, "stream": True}
    await client.send_all(write_post("/v1/completions", body))
    assert (await client.receive_some()).startswith(b"HTTP/1.1 200")


async def read(client: trio.SocketStream) -> bytes:
    with suppress(trio.BrokenResourceError):
        await client.send_all(b"GET /health HTTP/1.0\r\n\r\n")
    return bytes(await client.receive_some())


@pytest.mark.server(
    http=HttpConfig(max_connections=3, max_connections_per_address=2), step_seconds=0.05
)
async def test_an_address_has_a_part_of_the_connections(
    server: FakeServer, connect: Connect
) -> None:
    one, two, three = [await connect(1) for _ in range(3)]
    # The third takes the place of the first, which has no request.
    assert await one.receive_some() == b""
    await begin(two)
    await begin(three)
    refused = await read(await connect(1))
    assert refused.startswith(b"HTTP/1.1 503") and b"retry-after: 1\r\n" in refused
    # Others are served, up to the limit of all.
    await begin(await connect(2))
    assert (await read(await connect(3))).startswith(b"HTTP/1.1 503")
    await two.aclose()
    while server.state.lifecycle.num_active > 2:
        await trio.sleep(0.01)
    assert (await read(await connect(1))).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("root_path", ["/v1", "/v1/chat", "/score", "/metrics"])
def test_a_root_path_that_begins_a_path_of_the_api_is_refused(root_path: str) -> None:
    state = ServerState(config=HttpConfig(root_path=root_path))
    with pytest.raises(InvalidConfig, match="root-path"):
        create_http_app(state)


def test_a_root_path_may_begin_as_a_word_of_the_api() -> None:
    create_http_app(ServerState(config=HttpConfig(root_path="/v")))
