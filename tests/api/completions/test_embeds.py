"""Prompts of embeddings over real sockets, with a fake device."""

from __future__ import annotations

import base64
from collections.abc import Callable
import io

import httpx2 as httpx
import pytest
from safetensors.torch import save
import torch
import trio
import trio.testing

from trioserve.config import RenderConfig
from trioserve.render.workers.threads import RendererWorkers
from trioserve.testing.server import FakeServer

HIDDEN_SIZE = 8
PATH = "/v1/completions"


pytestmark = pytest.mark.server(
    render=RenderConfig(enable_prompt_embeds=True, renderer_num_workers=2)
)


def encode(vectors: torch.Tensor) -> str:
    file = io.BytesIO()
    torch.save(vectors, file)
    return base64.b64encode(file.getvalue()).decode()


def make(num_tokens: int) -> str:
    return encode(torch.full((num_tokens, HIDDEN_SIZE), float(num_tokens)))


async def test_vectors_come_before_prompts_in_the_order_of_choices(
    client: httpx.AsyncClient,
) -> None:
    body = {
        "prompt": [[20, 21], [22]],
        "prompt_embeds": [make(3), make(1)],
        "max_tokens": 2,
        "return_token_ids": True,
    }
    answer = (await client.post(PATH, json=body)).json()
    prompts = [choice["prompt_token_ids"] for choice in answer["choices"]]
    assert prompts == [[-1, -1, -1], [-1], [20, 21], [22]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 7


async def test_embeddings_without_text_are_a_prompt(
    client: httpx.AsyncClient, server: FakeServer
) -> None:
    for prompt in ("missing", None):
        body = {"prompt_embeds": make(5), "max_tokens": 6}
        if prompt is None:
            body["prompt"] = None
        answer = (await client.post(PATH, json=body)).json()
        assert answer["usage"]["prompt_tokens"] == 5, prompt
        assert server.answer.startswith(answer["choices"][0]["text"]), prompt


async def test_safetensors_are_taken_too(client: httpx.AsyncClient) -> None:
    payload = base64.b64encode(save({"x": torch.ones((4, HIDDEN_SIZE))})).decode()
    answer = await client.post(PATH, json={"prompt_embeds": payload, "max_tokens": 1})
    assert answer.json()["usage"]["prompt_tokens"] == 4


async def test_the_same_vectors_are_found_in_the_prefix_cache(
    client: httpx.AsyncClient,
) -> None:
    def count_cached(response: httpx.Response) -> int:
        details = response.json()["usage"]["prompt_tokens_details"]
        return 0 if details is None else details["cached_tokens"]

    vectors = torch.randn((90, HIDDEN_SIZE))
    longer = torch.cat((vectors, torch.randn((10, HIDDEN_SIZE))))
    body = {"max_tokens": 1}
    cached = [
        count_cached(await client.post(PATH, json={**body, "prompt_embeds": payload}))
        for payload in map(encode, (vectors, vectors, longer, vectors + 1))
    ]
    # The same tensor shares whole blocks of 16, a longer one whole groups of 64
    # vectors. Different vectors of the same length share nothing.
    assert cached == [0, 80, 64, 0]


async def test_vectors_in_a_chat(client: httpx.AsyncClient) -> None:
    content = [
        {"type": "text", "text": "Go on: "},
        {"type": "prompt_embeds", "prompt_embeds": make(6)},
    ]
    body = {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 2,
        "return_token_ids": True,
    }
    answer = (await client.post("/v1/chat/completions", json=body)).json()
    assert answer["prompt_token_ids"].count(-1) == 6


async def test_wrong_vectors_are_400_and_named(
    client: httpx.AsyncClient, server: FakeServer
) -> None:
    for embeds, param in (
        ("?", "prompt_embeds"),
        ([make(1), "AAAA"], "prompt_embeds[1]"),
        (encode(torch.ones((2, 7))), "prompt_embeds"),
        (encode(torch.ones((2, 8), dtype=torch.int64)), "prompt_embeds"),
        (make(256), "prompt_embeds"),
        ([], "prompt_embeds"),
    ):
        answer = await client.post(PATH, json={"prompt_embeds": embeds, "prompt": "a"})
        assert answer.status_code == 400, embeds
        assert answer.json()["error"]["param"] == param
    assert server.engine.statistics().num_streams == 0


async def test_one_wrong_tensor_ends_the_decoding_of_its_siblings(
    client: httpx.AsyncClient, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Callable[[], object]] = []
    run = RendererWorkers.run

    async def count(
        self: RendererWorkers, work: Callable[[], object], **options: float
    ) -> object:
        def counted() -> object:
            begun.append(work)
            return work()

        return await run(self, counted, **options)

    monkeypatch.setattr(RendererWorkers, "run", count)
    body = {"prompt_embeds": ["?", *[make(200)] * 100], "max_tokens": 1}
    answer = await client.post(PATH, json=body)
    assert answer.status_code == 400
    # Tasks start in any order: some vectors may be decoded already, but none is now.
    num_begun = len(begun)
    await trio.testing.wait_all_tasks_blocked()
    assert len(begun) == num_begun
    statistics = server.state.engine.renderer.workers.statistics()
    assert (statistics.busy, statistics.waiting) == (0, 0)


@pytest.mark.server(render=RenderConfig())
async def test_vectors_are_refused_unless_they_are_enabled(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.post(PATH, json={"prompt_embeds": make(1)})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "prompt_embeds"
    assert "--enable-prompt-embeds" in error["message"]
