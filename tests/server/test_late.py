"""Requests that other requests would make late are refused before they are rendered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import trio

from trioserve.config import HttpConfig
from trioserve.testing.server import (
    FakeServer,
    open_fake_pooling_server,
    open_fake_server,
)

PATH = "/v1/completions"
CHAT_PATH = "/v1/chat/completions"

# The tokenizer would refuse it with 400.
TOO_LONG = "1" * 2000

BODIES: dict[str, dict[str, Any]] = {
    PATH: {"prompt": TOO_LONG},
    CHAT_PATH: {"messages": [{"role": "user", "content": TOO_LONG}]},
    "/v1/responses": {"input": TOO_LONG},
    "/v1/messages": {
        "messages": [{"role": "user", "content": TOO_LONG}],
        "max_tokens": 100,
    },
}


async def fill(server: FakeServer, client: httpx.AsyncClient) -> None:
    """Let many requests wait, after some were measured."""
    for _ in range(2):
        await client.post(PATH, json={"prompt": [5], "max_tokens": 20, "n": 4})
    async with trio.open_nursery() as nursery:
        for _ in range(60):
            body = {"prompt": [5] * 20, "max_tokens": 200}
            nursery.start_soon(lambda: client.post(PATH, json=body))


@pytest.fixture
async def server(tokenizer_folder: Path) -> AsyncIterator[FakeServer]:
    """A server with so much work that a request waits for minutes."""
    config = HttpConfig(request_timeout=0.6)
    async with (
        open_fake_server(
            tokenizer_folder,
            http=config,
            step_seconds=0.02,
            max_num_seqs=4,
            max_queued_tokens=5000,
        ) as server,
        httpx.AsyncClient(
            base_url=server.url, timeout=None, headers={"X-Request-Timeout": "1000"}
        ) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(fill, server, client)
        with trio.fail_after(60):
            while server.engine.statistics().scheduler.num_waiting < 50:
                await trio.sleep(0.01)
            yield server
        nursery.cancel_scope.cancel()


async def test_a_request_that_would_be_late_is_refused(server: FakeServer) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        for path, body in BODIES.items():
            for fields, headers, param in (
                ({"timeout": 0.5}, {}, "timeout"),
                ({}, {"X-Request-Timeout": "0.5"}, "X-Request-Timeout"),
                ({}, {}, "request_timeout"),
                ({"stream": True}, {"X-Request-Timeout": "0.5"}, "X-Request-Timeout"),
            ):
                answer = await client.post(path, json=body | fields, headers=headers)
                error = answer.json()["error"]
                # Anthropic's API has 529 for it.
                assert answer.status_code in (503, 529), path
                assert f"{param}: because of other requests" in error["message"]
                assert 1 <= int(answer.headers["retry-after"]) <= 60
                if answer.status_code == 503:
                    assert error["param"] == param
        body = {"prompt": TOO_LONG, "timeout": 900, "max_queue_seconds": 0.5}
        answer = await client.post(PATH, json=body)
        assert answer.status_code == 503
        assert answer.json()["error"]["param"] == "max_queue_seconds"
        metrics = (await client.get("/metrics")).text
        assert f"trioserve_requests_refused_late_total {4 * 4 + 1}.0" in metrics
        # With enough time the tokenizer has its say.
        for path, body in BODIES.items():
            answer = await client.post(path, json=body | {"timeout": 900})
            assert answer.status_code == 400


async def test_its_tokens_are_counted_when_they_are_known(server: FakeServer) -> None:
    """A text of unknown length is taken for short ones that the server has seen."""
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        while server.engine.statistics().num_queued_tokens == 0:
            await trio.sleep(0.01)
        body: dict[str, Any] = {"prompt": [[5] * 100] * 60, "timeout": 900}
        answer = await client.post(PATH, json=body)
        assert answer.status_code == 429
        assert "prompt tokens are already" in answer.json()["error"]["message"]
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        metrics = (await client.get("/metrics")).text
        assert "trioserve_num_prompt_tokens_waiting " in metrics


async def test_an_option_lets_late_requests_in(tokenizer_folder: Path) -> None:
    config = HttpConfig(refuse_late=False)
    async with (
        open_fake_server(
            tokenizer_folder, http=config, step_seconds=0.02, max_num_seqs=4
        ) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(fill, server, client)
        with trio.fail_after(60):
            while server.engine.statistics().scheduler.num_waiting < 50:
                await trio.sleep(0.01)
            body = {"prompt": [5], "timeout": 0.5}
            assert (await client.post(PATH, json=body)).status_code == 504
        nursery.cancel_scope.cancel()


async def test_texts_that_would_be_late_are_refused(tokenizer_folder: Path) -> None:
    """A step takes 0.1 s, and reads 256 tokens."""
    async with (
        open_fake_pooling_server(
            tokenizer_folder, step_seconds=0.1, max_queued_tokens=60_000
        ) as server,
        httpx.AsyncClient(base_url=server.url, timeout=None) as client,
        trio.open_nursery() as nursery,
    ):

        async def ask(num_texts: int, **fields: Any) -> httpx.Response:
            body = {"input": [[5] * 128] * num_texts, **fields}
            return await client.post("/v1/embeddings", json=body)

        with trio.fail_after(60):
            await ask(20)
            nursery.start_soon(ask, 400)
            while server.engine.statistics().num_queued_tokens < 40_000:
                await trio.sleep(0.01)
            # It takes turns with the other request, so short ones are in time.
            assert (await ask(1, timeout=5)).status_code == 200
            refused = await ask(100, timeout=8)
            assert refused.status_code == 503
            assert refused.json()["error"]["param"] == "timeout"
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            refused = await ask(200)
            assert refused.status_code == 429
            assert "prompt tokens" in refused.json()["error"]["message"]
            metrics = (await client.get("/metrics")).text
            assert "trioserve_requests_refused_late_total 1.0" in metrics
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True), trio.move_on_after(5):
            while server.engine.statistics().num_queued_tokens:
                await trio.sleep(0.01)
    assert server.engine.statistics().num_queued_tokens == 0
