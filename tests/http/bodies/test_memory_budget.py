"""The memory of all bodies together is bounded."""

from __future__ import annotations

import json

import httpx2 as httpx
import pytest
import trio

from trioserve.config import HttpConfig, parse_bytes
from trioserve.http.bodies.memory import MemoryBudget, name_peer
from trioserve.testing.server import FakeServer

PATH = "/v1/completions"
# One address may hold 3/4 of 7/8 of 2 MiB, which is less than two of these.
HALF = b" " * 700_000


pytestmark = pytest.mark.server(
    http=HttpConfig(max_body_size="1MiB", max_bodies_memory="2MiB")
)


def test_memory_that_is_given_back_can_be_taken_again() -> None:
    budget = MemoryBudget(100)
    assert budget.take(75, peer="a", is_large=False)
    assert not budget.take(1, peer="a", is_large=False)
    budget.give_back(10, peer="a")
    assert budget.num_bytes == 65
    assert budget.take(10, peer="a", is_large=False)
    assert budget.num_refused == 1
    with pytest.raises(AssertionError):
        budget.give_back(76, peer="a")


def test_a_peer_takes_three_quarters_of_the_memory_that_others_leave() -> None:
    budget = MemoryBudget(6400)
    for peer, share in [("a", 4800), ("b", 1200), ("c", 300)]:
        assert budget.take(share, peer=peer, is_large=False)
        assert not budget.take(1, peer=peer, is_large=False)
    # A new peer gets some memory, until hardly any is left.
    assert budget.take(75, peer="d", is_large=False)


def test_large_bodies_leave_an_eighth_to_small_ones() -> None:
    budget = MemoryBudget(6400)
    # Large bodies may have 5,600 together, and each peer 3/4 of the rest.
    for peer, share in [("a", 4200), ("b", 1050), ("c", 262)]:
        assert budget.take(share, peer=peer, is_large=True)
        assert not budget.take(1, peer=peer, is_large=True)
        assert budget.take(1, peer=peer, is_large=False)
        budget.give_back(1, peer=peer)
    assert budget.take(600, peer="d", is_large=False)


def test_the_longest_body_has_room_where_nothing_else_is_held() -> None:
    config = HttpConfig(max_body_size="1MiB", max_bodies_memory="2MiB")
    budget = MemoryBudget(parse_bytes("", config.max_bodies_memory))
    longest = parse_bytes("", config.max_body_size)
    assert budget.take(longest, peer="a", is_large=True)


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        (("192.0.2.1", 1), ("192.0.2.1", 2), True),
        (("192.0.2.1", 1), ("192.0.2.2", 1), False),
        (("192.0.2.1", 1), ("::ffff:192.0.2.1", 1), True),
        (("::ffff:192.0.2.1", 1), ("::ffff:192.0.2.2", 1), False),
        (("2001:db8::1", 1), ("2001:db8::ffff:0:0:1", 1), True),
        (("2001:db8::1", 1), ("2001:db8:0:1::1", 1), False),
        (("fe80::1%eth0", 1), ("fe80::2%eth0", 1), True),
        (("what a proxy says", 0), ("another", 0), False),
        (None, None, True),
    ],
)
def test_a_peer_is_an_address_or_a_network_of_one_site(
    first: tuple[str, int] | None, second: tuple[str, int] | None, is_same: bool
) -> None:
    assert (name_peer(first) == name_peer(second)) == is_same


class Upload:
    """A body that pauses at each event among its parts."""

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
        # Its bytes are not counted any more, and small bodies are accepted.
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
    while server.state.lifecycle.num_active:
        await trio.sleep(0.001)
    assert server.state.bodies.num_bytes == 0
