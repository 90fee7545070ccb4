"""A key has its own limits, and reaching them costs no other key anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import trio
import trio.testing

from trioserve.config import HttpConfig
from trioserve.errors import KeyLimitReached
from trioserve.http.keys.key_use import KeyUse, KeyUses, Ticket
from trioserve.http.keys.keys import Key
from trioserve.testing.server import (
    FakePoolingServer,
    FakeServer,
    open_fake_pooling_server,
)

FILE = """
ann   sk-ann   max_requests=2
bob   sk-bob   tokens_per_minute=600
carl  sk-carl
"""
LONG = {"prompt": [5], "max_tokens": 200, "ignore_eos": True}
SHORT = {"prompt": [5] * 20, "max_tokens": 10}
PATH = "/v1/completions"


async def test_tokens_are_paid_afterwards(
    autojump_clock: trio.testing.MockClock,
) -> None:
    use = KeyUse(Key(name="bob", tokens_per_minute=600))
    use.check()
    use.charge(900)
    assert use.count_left() == -300
    with pytest.raises(KeyLimitReached, match="tokens_per_minute=600") as caught:
        use.check()
    # Ten tokens come each second.
    assert caught.value.retry_after_seconds == 31
    await trio.sleep(29)
    with pytest.raises(KeyLimitReached):
        use.check()
    await trio.sleep(2)
    use.check()
    await trio.sleep(3600)
    assert use.count_left() == 600
    assert use.refused == {"tokens_per_minute": 2}


async def test_requests_run_until_their_last_holder_has_gone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    use = KeyUse(Key(name="ann", max_requests=1))
    ticket = Ticket(use)
    with ticket.hold():
        with ticket.hold():
            assert use.num_running == 1
        with pytest.raises(KeyLimitReached, match="'ann'.*max_requests=1"):
            use.check()
    assert use.num_running == 0
    use.check()


async def test_a_new_limit_is_for_the_use_so_far(
    autojump_clock: trio.testing.MockClock,
) -> None:
    uses = KeyUses()
    uses.find(Key(name="bob", tokens_per_minute=600)).charge(500)
    use = uses.find(Key(name="bob", tokens_per_minute=60))
    assert use.count_left() == 60
    assert uses.find(Key(name="bob")).count_left() == float("inf")
    assert [each.key.name for each in uses.list_all()] == ["bob"]


async def test_http_processes_share_the_tokens_of_a_key(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first, second, third = KeyUses(), KeyUses(), KeyUses()
    bob = Key(name="bob", tokens_per_minute=600)
    calls = []
    first.on_charge = lambda: calls.append(1)
    second.take_tokens(0, first.list_tokens())
    first.take_tokens(1, second.list_tokens())
    second.find(bob).charge(100)
    first.find(bob).charge(500)
    first.find(Key(name="carl")).charge(5)
    assert calls == [1]
    for _ in range(2):
        # The same again counts no more.
        second.take_tokens(0, first.list_tokens())
        first.take_tokens(1, second.list_tokens())
        assert first.find(bob).count_left() == second.find(bob).count_left() == 0
    # One that begins later has no more left, though it has seen none of them used.
    third.take_tokens(0, first.list_tokens())
    third.take_tokens(1, second.list_tokens())
    assert third.find(bob).count_left() == 0
    first.find(bob).charge(7)
    third.take_tokens(0, first.list_tokens())
    assert third.find(bob).count_left() == -7
    # A successor counts from 0.
    third.forget(0)
    third.take_tokens(2, KeyUses().list_tokens())
    assert third.find(bob).count_left() == -7
    assert third.find(bob).num_tokens == 0


class FullSiblings:
    """Other HTTP processes, which have all places of each key."""

    is_first = True

    async def ask(self, question: bytes) -> list[bytes]:
        raise NotImplementedError

    async def take_place(self, key: str, limit: int) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    def give_back_place(self, key: str) -> None:
        raise AssertionError("none was taken")


async def test_only_keys_with_a_limit_ask_for_a_place(
    autojump_clock: trio.testing.MockClock,
) -> None:
    use = KeyUse(Key(name="ann", max_requests=2))
    with pytest.raises(KeyLimitReached, match="max_requests=2"):
        await Ticket(use).admit(FullSiblings())
    assert use.refused == {"max_requests": 1}
    free = Ticket(KeyUse(Key(name="bob")))
    await free.admit(FullSiblings())
    with free.hold():
        pass


@pytest.fixture
def server_options(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "keys").write_text(FILE)
    return {"http": HttpConfig(api_key_file=str(tmp_path / "keys"))}


pytestmark = pytest.mark.server(step_seconds=0.01)


async def post(
    server: Any, name: str, body: object, path: str = PATH
) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        headers = {"Authorization": f"Bearer sk-{name}"}
        return await client.post(path, json=body, headers=headers)


async def test_a_key_has_so_many_requests_at_once(server: FakeServer) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(post, server, "ann", LONG)
        while server.engine.statistics().num_streams < 2:
            await trio.sleep(0.01)
        for path in (PATH, "/v1/messages", "/tokenize"):
            # Before the body is read.
            refused = await post(server, "ann", {"nonsense": 1}, path)
            assert refused.status_code == 429
            message = refused.json()["error"]["message"]
            assert "'ann' has reached its limit (max_requests=2)" in message
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert (await post(server, "carl", SHORT)).status_code == 200
        nursery.cancel_scope.cancel()
    uses = server.state.key_uses
    while uses.find(Key(name="ann", max_requests=2)).num_running:
        await trio.sleep(0.01)
    assert (await post(server, "ann", SHORT)).status_code == 200


async def test_a_key_has_so_many_tokens_a_minute(server: FakeServer) -> None:
    first = await post(server, "bob", {**SHORT, "stream": True})
    assert first.headers["x-ratelimit-limit-tokens"] == "600"
    assert int(first.headers["x-ratelimit-remaining-tokens"]) in range(570, 582)
    assert first.headers["x-ratelimit-reset-tokens"].endswith("s")
    left = server.state.key_uses.find(Key(name="bob", tokens_per_minute=600))
    assert left.num_tokens == 30
    assert (
        await post(server, "bob", {**LONG, "max_tokens": 50, "n": 16})
    ).status_code == 200
    refused = await post(server, "bob", SHORT)
    assert refused.status_code == 429
    assert "tokens_per_minute=600" in refused.json()["error"]["message"]
    assert 15 < int(refused.headers["retry-after"]) < 30
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
    refused = await post(server, "bob", chat, "/v1/messages")
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert refused.headers["anthropic-ratelimit-tokens-limit"] == "600"
    assert refused.headers["anthropic-ratelimit-tokens-reset"].endswith("Z")
    answer = await post(server, "carl", SHORT)
    assert not [name for name in answer.headers if "ratelimit" in name]
    metrics = await post(server, "carl", {})
    async with httpx.AsyncClient(base_url=server.url) as client:
        metrics = await client.get("/metrics")
    for line in (
        'trioserve_key_tokens_total{key="carl"} 30.0',
        'trioserve_key_requests_total{key="bob"} 2.0',
        'trioserve_key_requests_running{key="bob"} 0.0',
        'trioserve_key_requests_refused_total{key="bob",limit="tokens_per_minute"} 2.0',
    ):
        assert line in metrics.text
    assert "sk-" not in metrics.text


async def test_a_response_in_the_background_counts(server: FakeServer) -> None:
    body = {"input": "a", "background": True, "max_output_tokens": 40}
    answer = await post(server, "ann", body, "/v1/responses")
    assert answer.status_code == 200
    use = server.state.key_uses.find(Key(name="ann", max_requests=2))
    assert use.num_running == 1
    while use.num_running:
        await trio.sleep(0.02)
    assert use.num_requests == 1
    assert use.num_tokens > 40


@pytest.mark.server(open=open_fake_pooling_server)
async def test_texts_that_are_pooled_count(server: FakePoolingServer) -> None:
    body = {"input": [[5] * 100] * 7}
    answer = await post(server, "bob", body, "/v1/embeddings")
    assert answer.status_code == 200
    refused = await post(server, "bob", body, "/v1/embeddings")
    assert refused.status_code == 429


@pytest.mark.server(step_seconds=0.002, max_num_seqs=2)
async def test_a_key_does_not_wait_behind_the_requests_of_another(
    server: FakeServer,
) -> None:
    answered: list[str] = []

    async def ask(name: str) -> None:
        answer = await post(server, name, {"prompt": [5], "max_tokens": 20})
        assert answer.status_code == 200
        answered.append(name)

    async with trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(ask, "carl")
        while server.engine.statistics().scheduler.num_waiting < 20:
            await trio.sleep(0.005)
        num_before = len(answered)
        nursery.start_soon(ask, "bob")
    assert answered.index("bob") <= num_before + 6
