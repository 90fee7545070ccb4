"""Endpoints of models that pool, over real sockets, with a fake device."""

from __future__ import annotations

from array import array
import base64
import json
from pathlib import Path
import struct
from typing import Any

import httpx2 as httpx
import pytest
import trio

from trioserve.config import RenderConfig
from trioserve.testing.fake_device import fake_vector
from trioserve.testing.server import (
    FakePoolingServer,
    open_fake_pooling_server,
    open_fake_server,
)
from trioserve.types.sentence import SentenceFolder

SIZE = 8
IDS = [10, 11, 12]
CHAT = [{"role": "user", "content": "Who waits for whom?"}]
LABELS = ("sad", "so so", "glad")

EMBEDDINGS = "/v1/embeddings"


def expect(token_ids: list[int], size: int = SIZE) -> list[float]:
    """Return the fake device's vector of a text, rounded to float32."""
    return array("f", fake_vector(token_ids, size)).tolist()


async def tokenize(client: httpx.AsyncClient, **fields: object) -> list[int]:
    answer = await client.post("/tokenize", json=fields)
    ids: list[int] = answer.json()["tokens"]
    return ids


async def embed(client: httpx.AsyncClient, **fields: object) -> Any:
    """Return the result of each input."""
    answer = await client.post(EMBEDDINGS, json=fields)
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [entry["index"] for entry in data] == list(range(len(data)))
    return [entry["embedding"] for entry in data]


async def post(client: httpx.AsyncClient, path: str, **fields: object) -> Any:
    """Return the answer of a 200."""
    answer = await client.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refuse(client: httpx.AsyncClient, path: str, **fields: object) -> Any:
    """Return the error of a 400."""
    answer = await client.post(path, json=fields)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


# Embeddings.


async def test_a_text_becomes_the_vector_of_its_tokens(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.post(EMBEDDINGS, json={"model": "fake", "input": "Hello"})
    body = answer.json()
    ids = await tokenize(client, prompt="Hello")
    assert body["id"].startswith("embd-")
    assert body["object"] == "list"
    assert body["model"] == "fake"
    assert body["created"] > 0
    assert body["data"] == [
        {"index": 0, "object": "embedding", "embedding": pytest.approx(expect(ids))}
    ]
    assert body["usage"] == {
        "prompt_tokens": len(ids),
        "total_tokens": len(ids),
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }


async def test_token_ids_are_taken_as_they_are(client: httpx.AsyncClient) -> None:
    for value, lists in ((IDS, [IDS]), ([IDS, [7]], [IDS, [7]])):
        assert await embed(client, input=value) == [
            pytest.approx(expect(ids)) for ids in lists
        ]


async def test_many_texts_come_back_in_order(client: httpx.AsyncClient) -> None:
    texts = [f"number {number}" for number in range(300)]
    vectors = await embed(client, input=texts)
    assert len(vectors) == len(texts)
    for index in (0, 1, 150, 299):
        ids = await tokenize(client, prompt=texts[index])
        assert vectors[index] == pytest.approx(expect(ids))


async def test_chats_are_rendered_by_their_template(client: httpx.AsyncClient) -> None:
    for field in ("messages", "input"):
        ids = await tokenize(client, messages=CHAT, add_generation_prompt=False)
        assert await embed(client, **{field: CHAT}) == [pytest.approx(expect(ids))]
        opened = await tokenize(client, messages=CHAT, add_generation_prompt=True)
        assert opened != ids, field
        assert (
            await embed(client, **{field: [CHAT, CHAT]}, add_generation_prompt=True)
            == [pytest.approx(expect(opened))] * 2
        )


TEMPLATE_CHAT: dict[str, Any] = {
    "messages": CHAT,
    "chat_template": "{{ greeting }}",
    "chat_template_kwargs": {"greeting": "Hello"},
}


async def test_chat_templates_are_refused(client: httpx.AsyncClient) -> None:
    error = await refuse(client, EMBEDDINGS, **TEMPLATE_CHAT)
    assert error["param"] == "chat_template"


@pytest.mark.server(render=RenderConfig(trust_request_chat_template=True))
async def test_chat_templates_are_taken_where_requests_are_trusted(
    client: httpx.AsyncClient,
) -> None:
    ids = await tokenize(client, prompt="Hello", add_special_tokens=False)
    assert await embed(client, **TEMPLATE_CHAT) == [pytest.approx(expect(ids))]


async def test_base64_is_float32_by_default(client: httpx.AsyncClient) -> None:
    [text] = await embed(client, input=IDS, encoding_format="base64")
    assert array("f", base64.b64decode(text)).tolist() == expect(IDS)


async def test_bytes_have_the_requested_type_and_order(
    client: httpx.AsyncClient,
) -> None:
    [text] = await embed(
        client,
        input=IDS,
        encoding_format="base64",
        embed_dtype="float16",
        endianness="big",
    )
    numbers = struct.unpack(f">{SIZE}e", base64.b64decode(text))
    assert numbers == pytest.approx(expect(IDS), abs=1e-3)


async def test_bytes_come_with_a_header_that_says_where_each_vector_is(
    client: httpx.AsyncClient,
) -> None:
    body = {"input": [IDS, [7]], "encoding_format": "bytes", "request_id": "mine"}
    answer = await client.post(EMBEDDINGS, json=body)
    assert answer.headers["content-type"] == "application/octet-stream"
    metadata = json.loads(answer.headers["metadata"])
    entries = metadata.pop("data")
    assert metadata.pop("created") > 0
    assert metadata == {
        "id": "embd-mine",
        "model": "fake",
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }
    assert [entry["index"] for entry in entries] == [0, 1]
    for entry, ids in zip(entries, (IDS, [7])):
        assert entry["embed_dtype"] == "float32"
        assert entry["endianness"] == "native"
        assert entry["shape"] == [SIZE]
        vector = answer.content[entry["start"] : entry["end"]]
        assert array("f", vector).tolist() == expect(ids)
    assert entries[-1]["end"] == len(answer.content)


async def test_bytes_come_without_a_header_on_request(
    client: httpx.AsyncClient,
) -> None:
    body = {"input": [IDS] * 1000, "encoding_format": "bytes_only"}
    answer = await client.post(EMBEDDINGS, json=body)
    assert "metadata" not in answer.headers
    assert array("f", answer.content).tolist() == expect(IDS) * 1000


async def test_a_header_that_no_client_takes_is_not_sent(
    server: FakePoolingServer, client: httpx.AsyncClient
) -> None:
    body = {"input": [IDS] * 1000, "encoding_format": "bytes"}
    error = await refuse(client, EMBEDDINGS, **body)
    assert error["param"] == "encoding_format"
    assert "bytes_only" in error["message"]
    assert "32768" in error["message"]
    assert server.device.plans == []
    # The header of 360 texts is too long only once it has their positions.
    body["input"] = [IDS] * 360
    error = await refuse(client, EMBEDDINGS, **body)
    assert error["param"] == "encoding_format"
    assert server.device.plans


def have_matryoshka(*sizes: int) -> pytest.MarkDecorator:
    return pytest.mark.server(matryoshka=sizes)


@pytest.mark.parametrize(
    "messages",
    [
        {4: "does not support Matryoshka embeddings; dimensions must be unset"},
        pytest.param(
            {
                number: f"only supports dimensions in range [1, 8], got {number}."
                for number in (0, 9)
            },
            marks=have_matryoshka(),
        ),
        pytest.param(
            {3: "only supports Matryoshka dimensions [2, 4], got 3."},
            marks=have_matryoshka(2, 4),
        ),
    ],
)
async def test_wrong_dimensions_are_refused_in_vllms_words(
    client: httpx.AsyncClient, messages: dict[int, str]
) -> None:
    for dimensions, message in messages.items():
        error = await refuse(client, EMBEDDINGS, input=IDS, dimensions=dimensions)
        assert error["param"] == "dimensions"
        assert message in error["message"]


async def test_the_models_own_size_may_be_named(client: httpx.AsyncClient) -> None:
    [vector] = await embed(client, input=IDS, dimensions=SIZE)
    assert vector == pytest.approx(expect(IDS))
    # The vectors of tokens have a size of their own.
    fields = {"task": "token_embed", "dimensions": SIZE}
    error = await refuse(client, "/pooling", input=IDS, **fields)
    assert error["param"] == "dimensions"


@pytest.mark.server(matryoshka=(2, 4))
async def test_matryoshka_vectors_are_cut(client: httpx.AsyncClient) -> None:
    [vector] = await embed(client, input=IDS, dimensions=4)
    assert vector == pytest.approx(expect(IDS, 4))


@pytest.mark.server(task="token_embed")
async def test_late_interaction_models_embed_each_token(
    client: httpx.AsyncClient,
) -> None:
    [matrix] = await embed(client, input=IDS)
    assert matrix == [pytest.approx(expect([token_id])) for token_id in IDS]
    body = {"input": IDS, "encoding_format": "bytes"}
    answer = await client.post(EMBEDDINGS, json=body)
    [entry] = json.loads(answer.headers["metadata"])["data"]
    assert entry["shape"] == [len(IDS), SIZE]


@pytest.mark.server(
    sentence=SentenceFolder(modes=("mean",), prompts={"query": "query: "})
)
async def test_a_prompt_of_the_model_is_put_before_texts(
    client: httpx.AsyncClient,
) -> None:
    ids = await tokenize(client, prompt="query: Hello")
    vectors = await embed(client, input="Hello", prompt_name="query")
    assert vectors == [pytest.approx(expect(ids))]
    error = await refuse(client, EMBEDDINGS, input="a", prompt_name="other")
    assert error["param"] == "prompt_name"


# Long texts.


@pytest.mark.server(max_model_len=16)
async def test_a_long_text_is_refused_and_named(client: httpx.AsyncClient) -> None:
    error = await refuse(client, EMBEDDINGS, input=["a", "word " * 100])
    assert error["param"] == "input[1]"
    assert "16" in error["message"]


@pytest.mark.server(max_model_len=16)
async def test_a_long_text_is_cut_to_the_models_length_on_request(
    client: httpx.AsyncClient,
) -> None:
    for fields in ({"long_text": "truncate"}, {"truncate_prompt_tokens": -1}):
        ids = list(range(5, 45))
        assert await embed(client, input=ids, **fields) == [
            pytest.approx(expect(ids[:16]))
        ]
        assert await embed(client, input=ids, truncation_side="left", **fields) == [
            pytest.approx(expect(ids[-16:]))
        ]


async def test_a_text_is_cut_to_fewer_tokens(client: httpx.AsyncClient) -> None:
    vectors = await embed(client, input=IDS, truncate_prompt_tokens=2)
    assert vectors == [pytest.approx(expect(IDS[:2]))]


@pytest.mark.parametrize(
    "fields",
    [
        {"long_text": "chunk"},
        pytest.param({}, marks=pytest.mark.server(long_texts="chunk")),
    ],
)
@pytest.mark.server(max_model_len=16)
async def test_chunks_of_a_long_text_are_averaged(
    client: httpx.AsyncClient, fields: dict[str, object]
) -> None:
    body = {"input": list(range(5, 45)), **fields}
    answer = (await client.post(EMBEDDINGS, json=body)).json()
    assert len(answer["data"]) == 1
    assert len(answer["data"][0]["embedding"]) == SIZE
    assert answer["usage"]["prompt_tokens"] == 40


@pytest.mark.server(task="token_embed", max_model_len=16)
async def test_only_texts_that_become_a_vector_have_chunks(
    client: httpx.AsyncClient,
) -> None:
    error = await refuse(client, EMBEDDINGS, input=IDS, long_text="chunk")
    assert error["param"] == "long_text"


@pytest.mark.server(max_model_len=16, long_texts="truncate")
async def test_the_servers_option_is_for_those_that_say_nothing(
    client: httpx.AsyncClient,
) -> None:
    ids = list(range(5, 45))
    [vector] = await embed(client, input=ids, truncation_side="left")
    assert vector == pytest.approx(expect(ids[-16:]))
    error = await refuse(client, EMBEDDINGS, input=ids, long_text="refuse")
    assert error["param"] == "input"


async def test_a_field_that_the_model_cannot_take_is_named(
    client: httpx.AsyncClient,
) -> None:
    rows: list[tuple[str, dict[str, Any], str]] = [
        (EMBEDDINGS, {"input": IDS, "truncation_side": "left"}, "truncation_side"),
        (
            *(EMBEDDINGS, {"input": IDS, "truncate_prompt_tokens": 257}),
            "truncate_prompt_tokens",
        ),
        (EMBEDDINGS, {"input": [10**6]}, "input"),
        (EMBEDDINGS, {"input": IDS, "priority": -1}, "priority"),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 4}, "output_dimension"),
        ("/score", {"data_1": ["a", "b"], "data_2": ["c"]}, "data_2"),
        ("/score", {"queries": "a", "documents": ["a", "x " * 400]}, "documents[1]"),
        ("/score", {"queries": "x " * 400, "documents": ["a"]}, "queries"),
        ("/rerank", {"query": "x " * 400, "documents": ["a"]}, "query"),
        (
            *("/rerank", {"query": "a", "documents": ["a"], "use_activation": False}),
            "use_activation",
        ),
    ]
    for path, fields, param in rows:
        assert (await refuse(client, path, **fields))["param"] == param


async def test_no_endpoint_takes_a_priority(client: httpx.AsyncClient) -> None:
    fields: dict[str, Any]
    for path, fields in {
        "/score": {"queries": "a", "documents": ["b"]},
        "/rerank": {"query": "a", "documents": ["b"]},
        "/pooling": {"input": "a"},
        "/v2/embed": {"texts": ["a"]},
    }.items():
        error = await refuse(client, path, priority=-1, **fields)
        assert error["param"] == "priority"
        answer = await client.post(path, json={"priority": 0, **fields})
        assert answer.status_code == 200


# Tasks.


async def test_pooling_does_the_task_of_the_model(
    client: httpx.AsyncClient,
) -> None:
    answer = await post(client, "/pooling", input=[IDS, [7]])
    assert answer["id"].startswith("pool-")
    assert answer["data"] == [
        {"index": 0, "object": "pooling", "data": pytest.approx(expect(IDS))},
        {"index": 1, "object": "pooling", "data": pytest.approx(expect([7]))},
    ]


async def test_pooling_ends_early_on_request(client: httpx.AsyncClient) -> None:
    body: dict[str, Any] = {"input": IDS, "task": "token_embed"}
    answer = await post(client, "/pooling", **body)
    assert answer["data"][0]["data"] == [pytest.approx(expect([i])) for i in IDS]
    answer = await post(client, "/pooling", **body, encoding_format="base64")
    numbers = array("f", base64.b64decode(answer["data"][0]["data"])).tolist()
    assert numbers == [number for i in IDS for number in expect([i])]


@pytest.mark.server(task="classify", num_outputs=3, labels=LABELS)
async def test_a_text_gets_its_likeliest_label(client: httpx.AsyncClient) -> None:
    answer = await post(client, "/classify", input=[IDS, [7]])
    assert answer["id"].startswith("classify-")
    assert answer["usage"]["prompt_tokens"] == 4
    for index, ids in enumerate((IDS, [7])):
        probs = expect(ids, 3)
        assert answer["data"][index] == {
            "index": index,
            "label": LABELS[probs.index(max(probs))],
            "probs": pytest.approx(probs),
            "num_classes": 3,
        }


classifies = pytest.mark.server(task="classify", num_outputs=3, labels=LABELS)
classifies_tokens = pytest.mark.server(
    task="token_classify", num_outputs=3, labels=LABELS
)


@pytest.mark.parametrize(
    "bodies",
    [
        {
            "/classify": {"input": "a"},
            "/pooling": {"input": "a", "task": "classify"},
            "/v1/completions": {"prompt": "a"},
            "/v1/chat/completions": {"messages": CHAT},
        },
        pytest.param(
            {
                EMBEDDINGS: {"input": "a"},
                "/v2/embed": {"texts": ["a"]},
                "/score": {"queries": "a", "documents": "b"},
            },
            marks=classifies,
        ),
        pytest.param(
            {
                "/classify": {"input": "a"},
                "/rerank": {"query": "a", "documents": ["b"]},
            },
            marks=classifies_tokens,
        ),
        pytest.param(
            {"/v2/embed": {"texts": ["a"]}},
            marks=pytest.mark.server(task="token_embed"),
        ),
    ],
)
async def test_what_the_model_does_not_do_is_400(
    client: httpx.AsyncClient, bodies: dict[str, dict[str, object]]
) -> None:
    for path, fields in bodies.items():
        error = await refuse(client, path, **fields)
        assert error["param"] == "model"
        assert "fake" in error["message"]


async def test_a_model_that_writes_does_not_pool(tokenizer_folder: Path) -> None:
    async with open_fake_server(tokenizer_folder) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            for path in (EMBEDDINGS, "/pooling", "/classify"):
                error = await refuse(client, path, input="a")
                assert error["param"] == "model"


async def test_another_model_is_not_found(client: httpx.AsyncClient) -> None:
    answer = await client.post(EMBEDDINGS, json={"input": "a", "model": "other"})
    assert answer.status_code == 404
    assert answer.json()["error"]["param"] == "model"


# Scores.


def cosine(first: list[int], second: list[int]) -> float:
    return sum(x * y for x, y in zip(expect(first), expect(second)))


async def test_scores_of_vectors_are_their_cosines(client: httpx.AsyncClient) -> None:
    texts = ["Hello", "a dog", "twelve"]
    ids = [await tokenize(client, prompt=text) for text in texts]
    answer = await post(client, "/score", queries=texts[0], documents=texts[1:])
    assert answer["id"].startswith("score-")
    assert answer["object"] == "list"
    assert answer["data"] == [
        {
            "index": index,
            "object": "score",
            "score": pytest.approx(cosine(ids[0], ids[1 + index]), abs=1e-6),
        }
        for index in range(2)
    ]
    # The query is read once.
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
    pairs = {"text_1": texts[:2], "text_2": texts[1:]}
    answer = (await client.post("/v1/score", json=pairs)).json()
    assert [entry["score"] for entry in answer["data"]] == pytest.approx(
        [cosine(ids[0], ids[1]), cosine(ids[1], ids[2])], abs=1e-6
    )


async def test_the_best_document_comes_first(client: httpx.AsyncClient) -> None:
    documents = ["a dog", {"text": "Hello"}, "twelve"]
    for path, version in (("/rerank", "2"), ("/v1/rerank", "1"), ("/v2/rerank", "2")):
        answer = await post(client, path, query="Hello", documents=documents, top_n=2)
        assert answer["model"] == "fake"
        first, second = answer["results"]
        assert first == {
            "index": 1,
            "document": {"text": "Hello", "multi_modal": None},
            "relevance_score": pytest.approx(1, abs=1e-6),
        }
        assert second["relevance_score"] <= first["relevance_score"]
        assert answer["usage"].keys() == {"prompt_tokens", "total_tokens"}
        assert answer["meta"] == {
            "api_version": {"version": version},
            "billed_units": {"input_tokens": answer["usage"]["total_tokens"]},
        }


async def test_equal_documents_keep_their_order(client: httpx.AsyncClient) -> None:
    answer = await post(
        client,
        "/rerank",
        query="Hello",
        documents=["a dog"] * 50,
        return_documents=False,
        top_n=0,
    )
    assert [result["index"] for result in answer["results"]] == list(range(50))
    assert all("document" not in result for result in answer["results"])


@pytest.mark.server(task="classify", num_outputs=1, labels=("LABEL_0",))
async def test_a_cross_encoder_reads_pairs(
    server: FakePoolingServer, client: httpx.AsyncClient
) -> None:
    body: dict[str, Any] = {"query": "Hello", "documents": ["a dog", "twelve"]}
    answer = await post(client, "/rerank", **body)
    rows = [row for plan in server.device.plans for row in plan.rows]
    assert len(rows) == 2
    assert all(row.params.task == "classify" for row in rows)
    await post(client, "/rerank", **body, use_activation=False)
    last = server.device.plans[-1].rows[-1]
    assert last.params.use_activation is False
    assert sorted(result["index"] for result in answer["results"]) == [0, 1]


async def test_documents_are_cut_on_request(client: httpx.AsyncClient) -> None:
    texts = {"queries": "dog " * 20, "documents": ["dog " * 200]}
    whole = (
        await client.post("/score", json={**texts, "long_text": "truncate"})
    ).json()
    limits = {"max_tokens_per_query": 5, "max_tokens_per_doc": 7}
    cut = (await client.post("/score", json={**texts, **limits})).json()
    assert cut["usage"]["prompt_tokens"] < 20 < whole["usage"]["prompt_tokens"]


@pytest.mark.server(long_texts="chunk")
async def test_documents_are_not_scored_in_chunks(client: httpx.AsyncClient) -> None:
    body = {"query": "a", "documents": ["a", "x " * 400]}
    error = await refuse(client, "/rerank", **body)
    assert error["param"] == "documents[1]"


# Cohere.


async def test_cohere_gets_each_form_that_it_names(client: httpx.AsyncClient) -> None:
    texts = ["Hello", "a dog"]
    answer = await post(
        client,
        "/v2/embed",
        texts=texts,
        input_type="search_document",
        embedding_types=["base64", "ubinary", "float", "binary"],
    )
    assert answer["texts"] == texts
    assert answer["response_type"] == "embeddings_by_type"
    vectors = [expect(await tokenize(client, prompt=text)) for text in texts]
    embeddings = answer["embeddings"]
    assert embeddings.keys() == {"float", "binary", "ubinary", "base64"}
    assert embeddings["float"] == [pytest.approx(vector) for vector in vectors]
    for vector, text in zip(vectors, embeddings["base64"]):
        assert list(struct.unpack("<8f", base64.b64decode(text))) == vector
    for vector, [unsigned], [signed] in zip(
        vectors, embeddings["ubinary"], embeddings["binary"]
    ):
        bits = "".join("1" if number > 0 else "0" for number in vector)
        assert unsigned == int(bits, 2)
        assert signed == unsigned - 128
    assert answer["meta"]["api_version"] == {"version": "2"}
    assert answer["meta"]["billed_units"]["input_tokens"] > 0


async def test_cohere_inputs_are_texts_too(client: httpx.AsyncClient) -> None:
    inputs = [{"content": [{"type": "text", "text": "Hello"}]}]
    answer = await post(client, "/v2/embed", inputs=inputs)
    ids = await tokenize(client, prompt="Hello")
    assert answer["embeddings"] == {"float": [pytest.approx(expect(ids))]}
    assert "texts" not in answer


async def test_coheres_older_api_gives_plain_vectors(client: httpx.AsyncClient) -> None:
    answer = await post(client, "/v1/embed", texts=["Hello"])
    ids = await tokenize(client, prompt="Hello")
    assert answer["embeddings"] == [pytest.approx(expect(ids))]
    assert answer["response_type"] == "embeddings_floats"
    assert answer["meta"]["api_version"] == {"version": "1"}
    answer = await post(client, "/v1/embed", texts=["Hello"], embedding_types=["float"])
    assert answer["embeddings"] == {"float": [pytest.approx(expect(ids))]}


@pytest.mark.server(max_model_len=16)
async def test_cohere_cuts_long_texts(client: httpx.AsyncClient) -> None:
    text = "one two three four " * 20
    for truncate in ("END", "START"):
        for limit in (16, 5, 500):
            answer = await post(
                client, "/v2/embed", texts=[text], truncate=truncate, max_tokens=limit
            )
            assert answer["meta"]["billed_units"]["input_tokens"] == min(limit, 16)
    body = {"texts": ["a", text], "truncate": "NONE"}
    error = await refuse(client, "/v2/embed", **body)
    assert error["param"] == "texts[1]"


PROMPTS = {"query": "query: ", "clustering": "cluster: ", "own": "own: "}


@pytest.mark.server(sentence=SentenceFolder(modes=("mean",), prompts=PROMPTS))
async def test_cohere_names_the_purpose_of_texts(client: httpx.AsyncClient) -> None:
    for input_type, prompt in {
        "search_query": "query: ",
        "search_document": "",
        "classification": "",
        "clustering": "cluster: ",
        "own": "own: ",
    }.items():
        answer = await post(client, "/v2/embed", texts=["Hello"], input_type=input_type)
        ids = await tokenize(client, prompt=f"{prompt}Hello")
        assert answer["embeddings"]["float"] == [pytest.approx(expect(ids))]
    error = await refuse(client, "/v2/embed", texts=["a"], input_type="image")
    assert error["param"] == "input_type"
    assert "own" in error["message"]


@pytest.mark.server(matryoshka=(4, 8))
async def test_bits_that_leave_a_byte_half_full_are_refused(
    server: FakePoolingServer, client: httpx.AsyncClient
) -> None:
    body = {"texts": ["a"], "embedding_types": ["binary"], "output_dimension": 4}
    error = await refuse(client, "/v2/embed", **body)
    assert error["param"] == "embedding_types"
    assert server.device.plans == []


# The server around them.


async def test_an_answers_id_ends_in_the_clients_own(client: httpx.AsyncClient) -> None:
    headers = {"X-Request-Id": "theirs"}
    for fields, number in (({}, "theirs"), ({"request_id": "mine"}, "mine")):
        body = {"input": IDS, **fields}
        answer = await client.post(EMBEDDINGS, json=body, headers=headers)
        assert answer.json()["id"] == f"embd-{number}"


async def test_an_engine_that_dies_answers_500(tokenizer_folder: Path) -> None:
    with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
        async with open_fake_pooling_server(tokenizer_folder, fail_at_step=0) as server:
            async with httpx.AsyncClient(base_url=server.url) as client:
                with trio.CancelScope(shield=True):
                    answer = await client.post(EMBEDDINGS, json={"input": IDS})
    assert answer.status_code == 500
    assert "engine" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (EMBEDDINGS, {"input": ["a" * 200, "b"]}),
        (EMBEDDINGS, {"messages": [{"role": "user", "content": "a" * 200}]}),
        ("/rerank", {"query": "b", "documents": ["a" * 200]}),
    ],
)
@pytest.mark.server(render=RenderConfig(renderer_max_text="300"), step_seconds=1000.0)
async def test_more_text_than_may_wait_is_429_with_retry_after(
    server: FakePoolingServer,
    client: httpx.AsyncClient,
    path: str,
    fields: dict[str, object],
) -> None:
    room = server.state.engine.renderer.room
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: client.post(path, json=fields))
        while room.statistics().num_requests == 0:
            await trio.lowlevel.checkpoint()
        answer = await client.post(path, json=fields)
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        nursery.cancel_scope.cancel()
    while room.statistics().num_requests:
        await trio.lowlevel.checkpoint()
    assert room.statistics().num_characters == 0


@pytest.mark.server(max_queued_requests=0, step_seconds=0.05)
async def test_a_full_queue_is_429_with_retry_after(
    server: FakePoolingServer, client: httpx.AsyncClient
) -> None:
    fresh = server.engine.statistics()
    async with trio.open_nursery() as nursery:
        body = {"input": [list(range(3, 203))] * 32}
        nursery.start_soon(lambda: client.post(EMBEDDINGS, json=body))
        while server.engine.statistics() == fresh:
            await trio.lowlevel.checkpoint()
        answer = await client.post(EMBEDDINGS, json={"input": IDS})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        nursery.cancel_scope.cancel()


@pytest.mark.server(step_seconds=0.02)
async def test_a_drain_refuses_newcomers_and_lets_others_end(
    server: FakePoolingServer, client: httpx.AsyncClient
) -> None:
    answers: list[httpx.Response] = []
    fresh = server.engine.statistics()

    async def ask() -> None:
        body = {"input": [list(range(3, 203))] * 5}
        answers.append(await client.post(EMBEDDINGS, json=body))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        while server.engine.statistics() == fresh:
            await trio.lowlevel.checkpoint()
        server.state.lifecycle.begin_drain()
        refused = await client.post(EMBEDDINGS, json={"input": IDS})
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
    assert [answer.status_code for answer in answers] == [200]
