"""The official clients of OpenAI and Cohere with a server that pools."""

from __future__ import annotations

from array import array
import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import openai
import pytest
import trio

from trioserve.testing.fake_device import fake_vector
from trioserve.testing.server import FakePoolingServer, open_fake_pooling_server

T = TypeVar("T")

TEXTS = ["Hello", "a dog", "twelve"]


@pytest.fixture
async def server(tokenizer_folder: Path) -> FakePoolingServer:
    async with open_fake_pooling_server(tokenizer_folder, matryoshka=(4, 8)) as server:
        with trio.fail_after(60):
            yield server


async def run_blocking(call: Callable[[], T]) -> T:
    """Call a blocking client in a thread beside the server."""
    return await trio.to_thread.run_sync(call)


async def expect(server: FakePoolingServer, texts: list[str]) -> list[list[float]]:
    """Return the fake device's vectors of texts, rounded to float32."""
    renderer = server.state.require_pooling().renderer
    prompts = [await renderer.render_text(text) for text in texts]
    return [array("f", fake_vector(prompt.token_ids, 8)).tolist() for prompt in prompts]


@pytest.mark.parametrize("encoding_format", [None, "float", "base64"])
async def test_openais_client_reads_the_vectors_exactly(
    server: FakePoolingServer, encoding_format: Any
) -> None:
    def ask() -> Any:
        options = {"encoding_format": encoding_format} if encoding_format else {}
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            return client.embeddings.create(model="fake", input=TEXTS, **options)

    answer = await run_blocking(ask)
    vectors = await expect(server, TEXTS)
    if encoding_format == "base64":
        # A caller that requests base64 also decodes it.
        assert all(isinstance(entry.embedding, str) for entry in answer.data)
        return
    assert [entry.embedding for entry in answer.data] == [
        pytest.approx(vector, rel=1e-7) for vector in vectors
    ]
    if encoding_format is None:
        # The client requests base64 by default.
        assert [entry.embedding for entry in answer.data] == vectors
    assert answer.usage.total_tokens > 0


async def test_openais_async_client_runs_on_trio(server: FakePoolingServer) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none"
    ) as client:
        answer = await client.embeddings.create(
            model="fake", input=[5, 6], dimensions=4
        )
        vector = array("f", fake_vector([5, 6], 4)).tolist()
        assert answer.data[0].embedding == vector
        with pytest.raises(openai.BadRequestError) as caught:
            await client.embeddings.create(model="fake", input="a", dimensions=3)
        assert caught.value.param == "dimensions"


def make_cohere(url: str) -> Any:
    import cohere

    return cohere.ClientV2(api_key="none", base_url=url)


async def test_coheres_client_embeds(server: FakePoolingServer) -> None:
    def ask() -> Any:
        with make_cohere(server.url) as client:
            return client.embed(
                model="fake",
                texts=TEXTS,
                input_type="search_document",
                embedding_types=["float", "ubinary", "base64"],
            )

    answer = await run_blocking(ask)
    vectors = await expect(server, TEXTS)
    assert answer.embeddings.float_ == [pytest.approx(vector) for vector in vectors]
    assert len(answer.embeddings.ubinary) == len(answer.embeddings.base64) == 3
    assert answer.texts == TEXTS
    assert answer.meta.api_version.version == "2"
    assert answer.response_type == "embeddings_by_type"


async def test_coheres_client_reranks(server: FakePoolingServer) -> None:
    def ask() -> Any:
        with make_cohere(server.url) as client:
            return client.rerank(model="fake", query="Hello", documents=TEXTS, top_n=2)

    answer = await run_blocking(ask)
    assert [result.index for result in answer.results][0] == 0
    assert answer.results[0].relevance_score == pytest.approx(1, abs=1e-6)
    assert len(answer.results) == 2
    assert answer.id


async def test_coheres_client_reads_errors(server: FakePoolingServer) -> None:
    import cohere

    def ask() -> None:
        with make_cohere(server.url) as client:
            client.rerank(model="other", query="a", documents=["b"])

    with pytest.raises(cohere.NotFoundError) as caught:
        await run_blocking(ask)
    assert caught.value.body["error"]["param"] == "model"


async def test_coheres_async_client_does_both(server: FakePoolingServer) -> None:
    import cohere

    async def ask() -> tuple[Any, Any]:
        async with cohere.AsyncClientV2(api_key="none", base_url=server.url) as client:
            embedded: Awaitable[Any] = client.embed(
                model="fake", texts=TEXTS, input_type="search_query"
            )
            ranked: Awaitable[Any] = client.rerank(
                model="fake", query="twelve", documents=TEXTS
            )
            return await asyncio.gather(embedded, ranked)

    embedded, ranked = await run_blocking(partial(asyncio.run, ask()))
    vectors = await expect(server, TEXTS)
    assert embedded.embeddings.float_ == [pytest.approx(vector) for vector in vectors]
    assert ranked.results[0].index == 2


async def test_coheres_older_client_embeds_and_reranks(
    server: FakePoolingServer,
) -> None:
    import cohere

    def ask() -> tuple[Any, Any]:
        with cohere.Client(api_key="none", base_url=server.url) as client:
            embedded = client.embed(
                model="fake", texts=TEXTS, input_type="classification", batching=False
            )
            ranked = client.rerank(
                model="fake", query="a dog", documents=TEXTS, return_documents=True
            )
            return embedded, ranked

    embedded, ranked = await run_blocking(ask)
    vectors = await expect(server, TEXTS)
    assert embedded.embeddings == [pytest.approx(vector) for vector in vectors]
    assert ranked.results[0].document.text == "a dog"
