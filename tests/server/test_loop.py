"""No endpoint does its long work on the event loop."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
import io
import json
from pathlib import Path
import time
from typing import TypeVar

from PIL import Image
import httpx2 as httpx
import numpy as np
import pytest
import torch
import trio

from trioserve.config import HttpConfig, MediaConfig, RenderConfig
from trioserve.observe import LoopStall
from trioserve.render import RendererWorkers
from trioserve.testing.processors import save_tiny_processor
from trioserve.testing.server import open_fake_server

pytestmark = pytest.mark.usefixtures("frozen_heap")

T = TypeVar("T")

MAX_MODEL_LEN = 100_000
TEXT = "Once upon a time there was a little server. " * 700

HIDDEN_SIZE = 512

# Upper bound of a request's longest step on the loop, as a share of the longest step
# when all of the request's work runs on the loop.
LARGEST_SHARE = 0.3

SLOW_TEMPLATE = (
    "{% for a in range(500) %}{% for b in range(3000) %}{% endfor %}{% endfor %}x"
)


def encode_tensor(num_rows: int) -> str:
    file = io.BytesIO()
    torch.save(torch.randn((num_rows, HIDDEN_SIZE)), file)
    return base64.b64encode(file.getvalue()).decode()


def make_chat(content: object, **fields: object) -> dict[str, object]:
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "max_tokens": 1, **fields}


def make_image() -> str:
    """A megapixel of noise, which a PNG can only copy."""
    pixels = np.random.default_rng(0).integers(0, 256, (1000, 1000, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def make_image_block() -> dict[str, object]:
    data = make_image().partition(",")[2]
    source = {"type": "base64", "media_type": "image/png", "data": data}
    return {"type": "image", "source": source}


CASES: dict[str, Callable[[], tuple[str, dict[str, object]]]] = {
    "a long chat": lambda: ("/v1/chat/completions", make_chat(TEXT)),
    "a slow template": lambda: (
        "/v1/chat/completions",
        make_chat("x", chat_template=SLOW_TEMPLATE),
    ),
    "embeddings in a chat": lambda: (
        "/v1/chat/completions",
        make_chat([{"type": "prompt_embeds", "prompt_embeds": encode_tensor(3_000)}]),
    ),
    "an image": lambda: (
        "/v1/chat/completions",
        make_chat([{"type": "image_url", "image_url": {"url": make_image()}}]),
    ),
    "an image for Anthropic's API": lambda: (
        "/v1/messages",
        make_chat([make_image_block()]),
    ),
    "a long prompt": lambda: ("/v1/completions", {"prompt": TEXT, "max_tokens": 1}),
    "many prompts": lambda: (
        "/v1/completions",
        {"prompt": [TEXT, *["a dog"] * 30], "max_tokens": 1},
    ),
    "many ids": lambda: (
        "/v1/completions",
        {"prompt": [7] * 300_000, "truncate_prompt_tokens": 5, "max_tokens": 1},
    ),
    "embeddings": lambda: (
        "/v1/completions",
        {"prompt_embeds": [encode_tensor(3_000)] * 2, "max_tokens": 1},
    ),
    "tokenize": lambda: ("/tokenize", {"prompt": TEXT, "return_token_strs": True}),
    "tokenize a chat": lambda: ("/tokenize", {"messages": make_chat(TEXT)["messages"]}),
    "detokenize": lambda: ("/detokenize", {"tokens": [40, 41, 42] * 20_000}),
}


async def measure(
    client: httpx.AsyncClient, path: str, body: dict[str, object], number: int
) -> float:
    """Return the longest step of any task while a request is answered.

    In seconds of the loop's own processor time, which hardly depends on other threads and
    processes: caches that they emptied lengthen it.

    Args:
      number: makes the request another one for caches.
    """
    content = json.dumps({**body, "cache_salt": f"{number}"}).encode()
    stall = LoopStall(clock=time.thread_time)
    trio.lowlevel.add_instrument(stall)
    headers = {"content-type": "application/json"}
    response = await client.post(path, content=content, headers=headers)
    assert response.status_code == 200, response.text[:500]
    trio.lowlevel.remove_instrument(stall)
    return stall.statistics().steps.longest_seconds


@asynccontextmanager
async def open_client(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with open_fake_server(
        folder,
        http=HttpConfig(max_body_size="256MiB"),
        render=RenderConfig(
            enable_prompt_embeds=True, trust_request_chat_template=True
        ),
        max_model_len=MAX_MODEL_LEN,
        # The blocks of more are made for longer than a case takes.
        max_num_seqs=4,
        hidden_size=HIDDEN_SIZE,
        takes_images=True,
        # Without a cache, each image is prepared again.
        media=MediaConfig(processor_cache_memory="0"),
    ) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_processor("qwen2_vl", tmp_path_factory.mktemp("processor"))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
async def test_no_request_is_made_on_the_loop(
    folder: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(
        workers: object,
        work: Callable[[], T],
        *limit: float,
        expected_seconds: float = 0,
    ) -> T:
        return work()

    path, body = CASES[case]()
    with trio.fail_after(120):
        async with open_client(folder) as client:
            # Modules that the first request loads are not measured.
            _, *in_workers = [await measure(client, path, body, i) for i in range(3)]
            monkeypatch.setattr(RendererWorkers, "run", run)
            monkeypatch.setattr(RendererWorkers, "run_limited", run)
            on_the_loop = await measure(client, path, body, 3)
    print("SHARE", case, in_workers, on_the_loop, min(in_workers) / on_the_loop)
    assert min(in_workers) < LARGEST_SHARE * on_the_loop
