"""The official clients of OpenAI and Cohere with a server that pools."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import openai
import pytest
import trio

from trioserve.frontend import PoolingEngine
from trioserve.testing.fake_device import fake_vector
from trioserve.testing.server import FakePoolingServer

TEXTS = ["Hello", "a dog", "twelve"]

pytestmark = pytest.mark.server(matryoshka=(4, 8))


@pytest.fixture
async def vectors(server: FakePoolingServer) -> list[list[float]]:
    """The fake device's vectors of the texts, rounded to float32."""
    served = server.state.engine
    assert isinstance(served, PoolingEngine)
    renderer = served.renderer
    prompts = [await renderer.render_text(text) for text in TEXTS]
    return [array("f", fake_vector(prompt.token_ids, 8)).tolist() for prompt in prompts]


async def test_openais_client_reads_the_vectors_exactly(
    server: FakePoolingServer, vectors: list[list[float]]
) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none"
    ) as client:

        async def embed(texts: Any = TEXTS, **fields: Any) -> list[Any]:
            answer = await client.embeddings.create(model="fake", input=texts, **fields)
            assert answer.usage.total_tokens > 0
            return [entry.embedding for entry in answer.data]

        # The client requests base64 by default.
        assert await embed() == vectors
        assert await embed(encoding_format="float") == [
            pytest.approx(vector, rel=1e-7) for vector in vectors
        ]
        # A caller that requests base64 also decodes it.
        assert all(
            isinstance(each, str) for each in await embed(encoding_format="base64")
        )
        cut = array("f", fake_vector([5, 6], 4)).tolist()
        assert await embed([5, 6], dimensions=4) == [cut]
        with pytest.raises(openai.BadRequestError) as caught:
            await embed("a", dimensions=3)
        assert caught.value.param == "dimensions"


async def ask_cohere(
    server: FakePoolingServer, ask: Callable[[Any], Any], client: str = "ClientV2"
) -> Any:
    """Call Cohere's blocking client in a thread beside the server."""
    import cohere

    def run() -> Any:
        with getattr(cohere, client)(api_key="none", base_url=server.url) as asking:
            return ask(asking)

    return await trio.to_thread.run_sync(run)


async def test_coheres_client_embeds_and_reranks(
    server: FakePoolingServer, vectors: list[list[float]]
) -> None:
    answer = await ask_cohere(
        server,
        lambda client: client.embed(
            model="fake",
            texts=TEXTS,
            input_type="search_document",
            embedding_types=["float", "ubinary", "base64"],
        ),
    )
    assert answer.embeddings.float_ == [pytest.approx(vector) for vector in vectors]
    assert len(answer.embeddings.ubinary) == len(answer.embeddings.base64) == 3
    assert answer.texts == TEXTS
    assert answer.meta.api_version.version == "2"
    assert answer.response_type == "embeddings_by_type"
    ranked = await ask_cohere(
        server,
        lambda client: client.rerank(
            model="fake", query="Hello", documents=TEXTS, top_n=2
        ),
    )
    assert [result.index for result in ranked.results][0] == 0
    assert ranked.results[0].relevance_score == pytest.approx(1, abs=1e-6)
    assert len(ranked.results) == 2
    assert ranked.id


async def test_coheres_client_reads_errors(server: FakePoolingServer) -> None:
    import cohere

    with pytest.raises(cohere.NotFoundError) as caught:
        await ask_cohere(
            server,
            lambda client: client.rerank(model="other", query="a", documents=["b"]),
        )
    assert caught.value.body["error"]["param"] == "model"


async def test_coheres_older_client_embeds_and_reranks(
    server: FakePoolingServer, vectors: list[list[float]]
) -> None:
    embedded, ranked = await ask_cohere(
        server,
        lambda client: (
            client.embed(
                model="fake", texts=TEXTS, input_type="classification", batching=False
            ),
            client.rerank(
                model="fake", query="a dog", documents=TEXTS, return_documents=True
            ),
        ),
        "Client",
    )
    assert embedded.embeddings == [pytest.approx(vector) for vector in vectors]
    assert ranked.results[0].document.text == "a dog"
