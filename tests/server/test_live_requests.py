"""Requests that are being answered can be seen and cancelled, by those whose they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
import json
from pathlib import Path
import re
import socket
from typing import Any
from urllib.parse import quote

import httpx2 as httpx
import pytest
import trio

from trioserve.config import HttpConfig
from trioserve.http.live.lifecycle import Lifecycle
from trioserve.http.live.live_requests import LiveRequest, LiveRequests
from trioserve.testing.server import FakeServer

LIVE = "/v1/requests"
PATH = "/v1/completions"
LONG = {"prompt": "a", "max_tokens": 200}
UPLOAD = (
    "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    "X-Request-Id: upload\r\nContent-Length: 1000\r\n\r\n{"
)

pytestmark = pytest.mark.server(step_seconds=0.02)

# Of responses that have not ended.
_OPEN = ("queued", "in_progress")


class Client:
    """Sends requests, some in the background."""

    def __init__(
        self, server: FakeServer, client: httpx.AsyncClient, nursery: trio.Nursery
    ) -> None:
        self.server = server
        self._client = client
        self._nursery = nursery
        self.answers: dict[str, httpx.Response] = {}

    async def ask(self, method: str, path: str, key: str = "") -> Any:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return await self._client.request(method, path, headers=headers)

    async def list_ids(self, key: str = "") -> list[str]:
        answer = (await self.ask("GET", LIVE, key)).json()
        assert answer["object"] == "list"
        return [each["id"] for each in answer["data"]]

    def begin(self, request_id: str, key: str = "", /, **fields: object) -> None:
        # The id in the header goes before the id in the body.
        headers = {} if "request_id" in fields else {"X-Request-Id": request_id}
        if key:
            headers["X-Api-Key"] = key

        async def post() -> None:
            self.answers[request_id] = await self._client.post(
                PATH, json=LONG | fields, headers=headers
            )

        self._nursery.start_soon(post)

    async def wait_for(self, phase: str, request_id: str, key: str = "") -> Any:
        while True:
            answer = await self.ask("GET", f"{LIVE}/{request_id}", key)
            if answer.status_code == 200:
                [card] = answer.json()["data"]
                if card["phase"] == phase:
                    return card
            await trio.sleep(0.01)

    async def begin_in_background(
        self, request_id: str, key: str = "", /, *, stays: bool = False, **fields: Any
    ) -> str:
        """Begin a response in the background; returns its path.

        Args:
          stays: go on to read its stream.
        """
        headers = {"X-Request-Id": request_id, "X-Request-Timeout": "20"}
        if key:
            headers["X-Api-Key"] = key
        body = {"input": "a", "background": True, "max_output_tokens": 200, **fields}
        found: list[str] = []

        async def read() -> None:
            async with self._client.stream(
                "POST", "/v1/responses", json=body, headers=headers
            ) as answer:
                async for line in answer.aiter_lines():
                    found.extend(re.findall(r'"id":"(resp_[^"]+)"', line))
                    if found and not stays and "stream" in fields:
                        break

        self._nursery.start_soon(read)
        while not found:
            await trio.sleep(0.01)
        return f"/v1/responses/{found[0]}"

    async def read_status(self, path: str, key: str = "") -> str:
        """Return the status of a response."""
        return str((await self.ask("GET", path, key)).json()["status"])

    async def wait_status(self, path: str, key: str = "") -> str:
        """Return the status of a response that ends."""
        while (status := await self.read_status(path, key)) in _OPEN:
            await trio.sleep(0.01)
        return status

    async def wait_answer(self, request_id: str) -> httpx.Response:
        while request_id not in self.answers:
            await trio.sleep(0.01)
        return self.answers[request_id]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The file with the keys of the server."""
    path = tmp_path / "keys"
    path.write_text("ann sk-ann\nbob sk-bob\nroot sk-root admin\n")
    return path


@pytest.fixture
def server_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    if "keys" not in request.fixturenames:
        return {}
    return {"http": HttpConfig(api_key_file=str(request.getfixturevalue("keys")))}


@pytest.fixture
async def live(
    server: FakeServer, client: httpx.AsyncClient, nursery: trio.Nursery
) -> AsyncIterator[Client]:
    fresh = server.engine.statistics()
    yield Client(server, client, nursery)
    nursery.cancel_scope.cancel()
    while server.engine.statistics() != fresh:
        await trio.sleep(0.01)


async def test_a_request_is_shown_while_it_is_answered(live: Client) -> None:
    assert await live.list_ids() == []
    live.begin("one", timeout=20, stream=True)
    card = await live.wait_for("decode", "one")
    assert (card["method"], card["path"], card["key"]) == ("POST", PATH, None)
    assert card["timeout_seconds"] == 20
    assert card["age_seconds"] > 0
    assert card["prompt_tokens"] > 0
    live.begin("two", prompt=["a", "b"])
    await live.wait_for("decode", "two")
    assert await live.list_ids() == ["one", "two"]
    while (await live.wait_for("decode", "one"))["completion_tokens"] < 10:
        pass


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cancelled_request_ends_with_an_error(
    live: Client, stream: bool
) -> None:
    live.begin("one", stream=stream, n=3)
    live.begin("other", max_tokens=20)
    await live.wait_for("decode", "one")
    cancelled = (await live.ask("DELETE", f"{LIVE}/one")).json()
    assert [each["id"] for each in cancelled["data"]] == ["one"]
    answer = await live.wait_answer("one")
    if stream:
        *_, error, done = answer.text.strip().split("\n\n")
        assert done == "data: [DONE]"
        error = json.loads(error.removeprefix("data: "))
    else:
        error = answer.json()
        assert answer.status_code == 499
        assert answer.headers["x-should-retry"] == "false"
    assert error["error"]["type"] == "RequestCancelled"
    other = (await live.wait_answer("other")).json()
    assert other["choices"][0]["finish_reason"] == "length"
    assert (await live.ask("DELETE", f"{LIVE}/one")).status_code == 404


async def test_an_upload_can_be_cancelled(live: Client) -> None:
    port = live.server.port
    async with await trio.open_tcp_stream("127.0.0.1", port) as uploader:
        await uploader.send_all(UPLOAD.encode())
        await live.wait_for("body", "upload")
        assert (await live.ask("DELETE", LIVE)).status_code == 200
        answer = b"".join([data async for data in uploader])
    assert answer.startswith(b"HTTP/1.1 499")
    assert await live.list_ids() == []


async def test_a_key_sees_and_cancels_its_own_requests(
    live: Client, keys: Path
) -> None:
    live.begin("of-ann", "sk-ann")
    live.begin("of-bob", "sk-bob")
    card = await live.wait_for("decode", "of-ann", "sk-ann")
    assert card["key"] == "ann"
    await live.wait_for("decode", "of-bob", "sk-root")
    assert await live.list_ids("sk-ann") == ["of-ann"]
    assert await live.list_ids("sk-bob") == ["of-bob"]
    assert sorted(await live.list_ids("sk-root")) == ["of-ann", "of-bob"]
    for method in ("GET", "DELETE"):
        answer = await live.ask(method, f"{LIVE}/of-bob", "sk-ann")
        assert answer.status_code == 404
        assert answer.json()["error"]["param"] == "request_id"
    await live.ask("DELETE", LIVE, "sk-ann")
    assert (await live.wait_answer("of-ann")).status_code == 499
    assert await live.list_ids("sk-root") == ["of-bob"]
    await live.ask("DELETE", LIVE, "sk-root")
    assert (await live.wait_answer("of-bob")).status_code == 499


async def test_an_id_may_name_several(live: Client) -> None:
    live.begin("twin")
    live.begin("twin", stream=True)
    while len(await live.list_ids()) < 2:
        await trio.sleep(0.01)
    shown = (await live.ask("GET", f"{LIVE}/twin")).json()["data"]
    assert [each["id"] for each in shown] == ["twin"] * 2
    await live.ask("DELETE", f"{LIVE}/twin")
    while await live.list_ids():
        await trio.sleep(0.01)


async def test_the_oldest_come_first_though_they_have_lost_their_connection() -> None:
    def make(arrived_at: float) -> Any:
        parts: Any = dict.fromkeys(("progress", "time_limit", "cancellation", "owner"))
        return LiveRequest(
            named=arrived_at, method="GET", path=LIVE, arrived_at=arrived_at, **parts
        )

    lifecycle = Lifecycle(drain_timeout=1)
    live = LiveRequests(lifecycle)
    first, second, third, asker = map(make, (1.0, 2.0, 3.0, 4.0))
    with (
        lifecycle.hold(first),
        lifecycle.hold(third),
        lifecycle.hold(asker),
        live.hold(second),
    ):
        assert live.list_for(asker.key) == [first, second, third, asker]


async def test_an_id_may_have_slashes(live: Client) -> None:
    for request_id in ("a/b", "/v1/requests"):
        live.begin("one", request_id=request_id)
        path = f"{LIVE}/{quote(request_id, safe='')}"
        while (shown := await live.ask("GET", path)).status_code != 200:
            await trio.sleep(0.01)
        assert [each["id"] for each in shown.json()["data"]] == [request_id]
        assert (await live.ask("DELETE", path)).status_code == 200
        assert (await live.wait_answer("one")).status_code == 499
        del live.answers["one"]


async def test_an_empty_id_cancels_nothing(live: Client) -> None:
    live.begin("one", max_tokens=15)
    await live.wait_for("decode", "one")
    assert (await live.ask("DELETE", f"{LIVE}/")).status_code == 404
    assert (await live.wait_answer("one")).status_code == 200


async def test_the_device_is_free_though_the_client_does_not_read(
    live: Client,
) -> None:
    body = json.dumps({**LONG, "n": 32, "stream": True, "logprobs": 5})
    head = UPLOAD.partition("Content-Length")[0]
    port = live.server.port
    async with await trio.open_tcp_stream("127.0.0.1", port) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}"
        await reader.send_all(request.encode())
        while live.server.engine.statistics().scheduler.num_running == 0:
            await trio.sleep(0.01)
        await live.ask("DELETE", f"{LIVE}/upload")
        num_steps = len(live.server.device.plans)
        while live.server.engine.statistics().scheduler.num_running:
            await trio.sleep(0.001)
        # Those that were in flight already.
        assert len(live.server.device.plans) <= num_steps + 3


async def test_a_followed_response_ends_by_its_own_deadline(
    live: Client,
) -> None:
    body = {"input": "a", "background": True, "stream": True}
    async with httpx.AsyncClient(base_url=live.server.url, timeout=20) as http:
        headers = {"X-Request-Timeout": "0.3"}
        answer = await http.post("/v1/responses", json=body, headers=headers)
    assert '"reason":"deadline"' in answer.text
    assert "event: error" not in answer.text


# The client leaves generators of its own to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_follower_can_be_cancelled_again_and_again(
    live: Client,
) -> None:
    texts: list[str] = []

    async def follow() -> None:
        texts.append((await live.ask("GET", f"{path}?stream=true")).text)

    async with trio.open_nursery() as nursery:
        path = await live.begin_in_background("began", stream=True)
        nursery.start_soon(follow)
        while len(ids := await live.list_ids()) < 2:
            await trio.sleep(0.01)
        await trio.sleep(0.1)
        [follower] = set(ids) - {"began"}
        for _ in range(2):
            await live.ask("DELETE", f"{LIVE}/{follower}")
    last = texts[0].strip().rpartition("\n\n")[2]
    assert last.startswith("event: error\n")
    assert '"code":"request_cancelled"' in last
    assert await live.read_status(path) == "in_progress"
    await live.ask("DELETE", LIVE)


async def test_a_response_in_the_background_is_shown_and_cancelled(
    live: Client,
) -> None:
    path = await live.begin_in_background("back")
    card = await live.wait_for("decode", "back")
    assert (card["method"], card["path"]) == ("POST", "/v1/responses")
    assert card["timeout_seconds"] == 20
    assert 0 < card["deadline_seconds"] < 20
    assert card["age_seconds"] > 0
    assert card["prompt_tokens"] > 0
    assert card["kv_blocks"] > 0
    assert card["task"] is not None
    while (await live.wait_for("decode", "back"))["completion_tokens"] < 5:
        pass
    cancelled = (await live.ask("DELETE", f"{LIVE}/back")).json()["data"]
    assert [each["id"] for each in cancelled] == ["back"]
    assert await live.wait_status(path) == "cancelled"
    assert await live.list_ids() == []
    measured = live.server.state.counts.cancel_to_free["decode"].statistics()
    assert sum(measured.counts) == 1


async def test_the_stream_that_began_a_response_is_cancelled_with_it(
    live: Client,
) -> None:
    path = await live.begin_in_background("back", stream=True, stays=True)
    assert await live.list_ids() == ["back", "back"]
    await live.ask("DELETE", f"{LIVE}/back")
    assert await live.wait_status(path) == "cancelled"
    while await live.list_ids():
        await trio.sleep(0.01)


async def test_responses_of_a_removed_key_are_an_administrators_to_end(
    live: Client, keys: Path
) -> None:
    paths = [
        await live.begin_in_background(name, f"sk-{name}") for name in ("ann", "bob")
    ]
    assert await live.list_ids("sk-ann") == ["ann"]
    answer = await live.ask("DELETE", f"{LIVE}/bob", "sk-ann")
    assert answer.status_code == 404
    keys.write_text("bob sk-bob\nroot sk-root admin\n")
    live.server.state.keys.reload()
    assert (await live.ask("GET", LIVE, "sk-ann")).status_code == 401
    cancelled = await live.ask("DELETE", f"{LIVE}?key=ann", "sk-root")
    assert [each["key"] for each in cancelled.json()["data"]] == ["ann"]
    assert await live.wait_status(paths[0], "sk-root") == "cancelled"
    assert await live.list_ids("sk-root") == ["bob"]
    await live.ask("DELETE", LIVE, "sk-bob")
    assert await live.wait_status(paths[1], "sk-bob") == "cancelled"


async def test_an_administrator_cancels_the_requests_of_one_key(
    live: Client, keys: Path
) -> None:
    for name in ("ann", "bob"):
        live.begin(name, f"sk-{name}")
        await live.wait_for("decode", name, "sk-root")
    for name, key in [("bob", "sk-ann"), ("eve", "sk-root")]:
        answer = await live.ask("DELETE", f"{LIVE}?key={name}", key)
        assert answer.json()["data"] == []
    # A slip must not cancel everything.
    slip = await live.ask("DELETE", f"{LIVE}?keys=ann", "sk-root")
    assert slip.status_code == 400
    assert slip.json()["error"]["param"] == "keys"
    slip = await live.ask("DELETE", f"{LIVE}?key=bob&key=ann", "sk-root")
    assert slip.json()["error"]["message"] == "key: may be given once"
    assert sorted(await live.list_ids("sk-root")) == ["ann", "bob"]
    await live.ask("DELETE", f"{LIVE}?key=ann", "sk-root")
    assert (await live.wait_answer("ann")).status_code == 499
    listed = await live.ask("GET", f"{LIVE}?key=bob", "sk-root")
    assert [each["id"] for each in listed.json()["data"]] == ["bob"]
