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


@pytest.mark.parametrize(
    ("task", "path", "body"),
    [
        (None, "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3}),
        (None, "/v1/completions", {"prompt": "Hi", "max_tokens": 3}),
        (None, "/v1/completions", {"prompt": "Hi", "messages": None, "max_tokens": 3}),
        (None, "/v1/completions", {"prompt": "Hi", "max_tokens": -3}),
        (None, "/v1/embeddings", {"input": "Hi"}),
        (None, "/rerank", {"query": "a", "documents": ["b"]}),
        ("embed", "/v1/embeddings", {"input": "Hi"}),
        ("embed", "/v1/embeddings", {"messages": MESSAGES}),
        ("embed", "/v1/embeddings", {"input": "Hi" * 99_999}),
        ("embed", "/pooling", {"input": "Hi", "task": "embed"}),
        ("embed", "/score", {"text_1": "a", "text_2": ["b"]}),
        ("embed", "/rerank", {"query": "a", "documents": ["b", "c"]}),
        ("embed", "/v1/completions", {"prompt": "Hi"}),
        ("classify", "/classify", {"input": "Hi"}),
        ("token_embed", "/pooling", {"input": "Hi"}),
    ],
)
async def test_a_body_is_answered_by_the_endpoint_of_its_fields(
    tokenizer_folder: Path, task: PoolingTask | None, path: str, body: object
) -> None:
    async with open_client(tokenizer_folder, task) as client:
        there = await client.post(path, json=body)
        here = await client.post("/invocations", json=body)
    assert drop_changing(here) == drop_changing(there)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "The body is not valid JSON"),
        ("[]", "The body"),
        ("", "The body is empty."),
        ("{}", "The body needs one of messages, prompt, query, queries,"),
        ('{"messages": null}', "The body needs one of messages, prompt, query,"),
    ],
)
async def test_a_body_without_these_fields_is_refused(
    tokenizer_folder: Path, content: str, message: str
) -> None:
    headers = {"Content-Type": "application/json"}
    async with open_client(tokenizer_folder, None) as client:
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
