"""Requests with many prompts do not slow down the stream of another client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import trio

from trioserve.testing.server import FakeServer, open_fake_server
from trioserve.types.plan import StepPlan

COMPLETION_PATH = "/v1/completions"

# The server has 1,000 places.
MANY = {"prompt": [[5, 6 + i % 50] for i in range(400)], "max_tokens": 30}


pytestmark = pytest.mark.server(max_queued_requests=968)


async def wait_running(server: FakeServer, num_sequences: int) -> None:
    while server.engine.statistics().scheduler.num_running < num_sequences:
        await trio.lowlevel.checkpoint()


async def post_many(client: httpx.AsyncClient) -> None:
    # The other requests end with the test.
    with trio.move_on_after(20):
        await client.post(COMPLETION_PATH, json=MANY)


def seconds_of(plan: StepPlan) -> float:
    return 0.0005 + 0.0003 * len(plan.rows)


async def test_the_steps_of_a_bystanders_stream_stay_short(
    tokenizer_folder: Path, nursery: trio.Nursery
) -> None:
    """All 32 rows take 10 ms. The clock is real: a step may take longer, never less."""
    body = {"prompt": [5], "max_tokens": 40, "stream": True}
    async with (
        open_fake_server(
            tokenizer_folder,
            max_queued_requests=968,
            seconds_of=seconds_of,
            max_step_seconds=0.006,
        ) as server,
        httpx.AsyncClient(base_url=server.url, timeout=20) as client,
    ):
        with trio.fail_after(30):
            nursery.start_soon(post_many, client)
            await wait_running(server, 32)
            begin = len(server.device.plans)
            async with client.stream("POST", COMPLETION_PATH, json=body) as response:
                num_tokens = 0
                async for line in response.aiter_lines():
                    num_tokens += line.startswith("data: {")
        steps = server.device.plans[begin:]
        # The stream is the only request with this prompt.
        [start] = [
            index
            for index, plan in enumerate(steps)
            for each in plan.starts
            if each.prompt_token_ids == (5,)
        ]
        nursery.cancel_scope.cancel()
    # Two steps were in flight, and one of the stream's was the first of its kind.
    beside = steps[start + 3 : start + 40]
    assert len(beside) == num_tokens - 3 == 37
    assert max(map(seconds_of, beside)) < 0.007


async def test_a_short_request_is_admitted_beside_hundreds_that_wait(
    server: FakeServer, client: httpx.AsyncClient, nursery: trio.Nursery
) -> None:
    nursery.start_soon(post_many, client)
    await wait_running(server, 32)
    begin = len(server.device.plans)
    answer = await client.post(COMPLETION_PATH, json={"prompt": [7], "max_tokens": 1})
    assert answer.status_code == 200
    # 400 prompts in 32 slots are 375 steps; those that run have 30 at most.
    assert len(server.device.plans) - begin < 100
    nursery.cancel_scope.cancel()


async def test_more_prompts_than_a_request_may_have_are_refused(
    client: httpx.AsyncClient,
) -> None:
    body: dict[str, Any] = {"prompt": [[5, 6]] * 501, "max_tokens": 1}
    answer = await client.post(COMPLETION_PATH, json=body)
    assert answer.status_code == 400
    assert "at most 500" in answer.json()["error"]["message"]


async def test_a_crowd_of_large_requests_leaves_places_to_others(
    server: FakeServer, client: httpx.AsyncClient, nursery: trio.Nursery
) -> None:
    nursery.start_soon(post_many, client)
    while server.engine.statistics().scheduler.num_waiting == 0:
        await trio.lowlevel.checkpoint()
    answer = await client.post(COMPLETION_PATH, json=MANY)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    answer = await client.post(COMPLETION_PATH, json={"prompt": [7], "max_tokens": 1})
    assert answer.status_code == 200
    nursery.cancel_scope.cancel()
