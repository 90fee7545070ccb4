"""/invocations and /ping, as SageMaker asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
import json
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import trio

from trioserve.testing.server import open_fake_pooling_server, open_fake_server
from trioserve.types.pooling import PoolingTask

MESSAGES = [{"role": "user", "content": "Hello"}]
# The second prompt is cached.
CHANGING = {"id", "created", "request_id", "usage"}


@asynccontextmanager
async def open_client(
    folder: Path, task: PoolingTask | None
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a model for a task; None generates."""
    if task is None:
        opened: Any = open_fake_server(folder)
    else:
        labels = ("good", "bad") if task == "classify" else ()
        opened = open_fake_pooling_server(
            folder, task=task, labels=labels, num_outputs=len(labels) or 8
        )
    with trio.fail_after(60):
        async with (
            opened as server,
            httpx.AsyncClient(base_url=server.url, timeout=60) as client,
        ):
            yield client


def drop_changing(answer: httpx.Response) -> tuple[int, object]:
    body = answer.json()
    return answer.status_code, {k: v for k, v in body.items() if k not in CHANGING}


BODIES: dict[PoolingTask | None, list[tuple[str, dict[str, object]]]] = {
    None: [
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3}),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 3}),
        ("/v1/completions", {"prompt": "Hi", "messages": None, "max_tokens": 3}),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": -3}),
        ("/v1/embeddings", {"input": "Hi"}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
    ],
    "embed": [
        ("/v1/embeddings", {"input": "Hi"}),
        ("/v1/embeddings", {"messages": MESSAGES}),
        ("/v1/embeddings", {"input": "Hi" * 9_999}),
        ("/pooling", {"input": "Hi", "task": "embed"}),
        ("/score", {"text_1": "a", "text_2": ["b"]}),
        ("/rerank", {"query": "a", "documents": ["b", "c"]}),
        ("/v1/completions", {"prompt": "Hi"}),
    ],
    "classify": [("/classify", {"input": "Hi"})],
    "token_embed": [("/pooling", {"input": "Hi"})],
}


@pytest.mark.parametrize("task", BODIES)
async def test_a_body_is_answered_by_the_endpoint_of_its_fields(
    tokenizer_folder: Path, task: PoolingTask | None
) -> None:
    async with open_client(tokenizer_folder, task) as client:
        for path, body in BODIES[task]:
            there = await client.post(path, json=body)
            here = await client.post("/invocations", json=body)
            assert drop_changing(here) == drop_changing(there), body


async def test_a_body_without_these_fields_is_refused(tokenizer_folder: Path) -> None:
    headers = {"Content-Type": "application/json"}
    async with open_client(tokenizer_folder, None) as client:
        for content, message in {
            "{": "The body is not valid JSON",
            "[]": "The body",
            "": "The body is empty.",
            "{}": "The body needs one of messages, prompt, query, queries,",
            '{"messages": null}': "The body needs one of messages, prompt, query,",
        }.items():
            answer = await client.post("/invocations", content=content, headers=headers)
            assert answer.status_code == 400
            assert answer.json()["error"]["message"].startswith(message)


async def test_answers_are_streamed(tokenizer_folder: Path) -> None:
    body = {"messages": MESSAGES, "max_tokens": 3, "stream": True}
    async with open_client(tokenizer_folder, None) as client:
        answer = await client.post("/invocations", json=body)
        assert (await client.get("/ping")).status_code == 200
    *events, done = [line for line in answer.text.splitlines() if line]
    assert done == "data: [DONE]"
    assert all(
        json.loads(each.removeprefix("data: "))["object"] == "chat.completion.chunk"
        for each in events
    )
