"""No endpoint of models that pool does its long work on the event loop."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
import time
from typing import TypeVar

import httpx2 as httpx
import pytest
import trio

from trioserve.observe import LoopStall
from trioserve.render import RendererWorkers
from trioserve.testing.server import open_fake_pooling_server

pytestmark = pytest.mark.usefixtures("frozen_heap")

T = TypeVar("T")

# 0.15 MB, as clients send that index documents.
TEXTS = ["Once upon a time there was a little server. " * 55] * 64

# Upper bound of a request's longest step on the loop, as a share of the longest step
# when all of the request's work runs on the loop.
LARGEST_SHARE = 0.3

CASES: dict[str, tuple[str, dict[str, object]]] = {
    "many texts": ("/v1/embeddings", {"input": TEXTS, "truncate_prompt_tokens": -1}),
    "many ids": (
        "/v1/embeddings",
        {"input": [[7] * 125_000] * 2, "truncate_prompt_tokens": 5},
    ),
    "many documents": (
        "/rerank",
        {"query": "Who waits?", "documents": TEXTS, "truncate_prompt_tokens": -1},
    ),
    "texts that are sent back": ("/v2/embed", {"texts": TEXTS}),
}


async def measure(folder: Path, path: str, body: dict[str, object]) -> float:
    """Return the longest step of any task while a request is answered.

    In seconds of the loop's own processor time, which no other thread or process can
    lengthen.
    """
    stall = LoopStall(clock=time.thread_time)
    async with (
        open_fake_pooling_server(folder, step_seconds=0) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        headers = {"content-type": "application/json"}
        content = json.dumps(body).encode()
        # Modules that the first request loads are not measured.
        short = {k: v[:1] if isinstance(v, list) else v for k, v in body.items()}
        await client.post(path, json=short)
        trio.lowlevel.add_instrument(stall)
        answer = await client.post(path, content=content, headers=headers)
        trio.lowlevel.remove_instrument(stall)
        assert answer.status_code == 200, answer.text[:500]
    return stall.statistics().steps.longest_seconds


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
async def test_no_request_is_made_on_the_loop(
    tokenizer_folder: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(
        workers: object, work: Callable[[], T], *, expected_seconds: float = 0
    ) -> T:
        return work()

    path, body = CASES[case]
    with trio.fail_after(60):
        in_workers = await measure(tokenizer_folder, path, body)
        monkeypatch.setattr(RendererWorkers, "run", run)
        on_the_loop = await measure(tokenizer_folder, path, body)
    assert in_workers < LARGEST_SHARE * on_the_loop, (in_workers, on_the_loop)
