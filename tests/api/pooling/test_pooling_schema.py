"""Requests to models that pool: a struct, or an error that names the field."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from trioserve.api.cohere.requests import COHERE_EMBED_BODY, COHERE_TYPES
from trioserve.api.decode.decoder import BodyDecoder
from trioserve.api.pooling.body import (
    CLASSIFICATION_BODY,
    EMBEDDING_BODY,
    POOLING_BODY,
    RERANK_BODY,
    SCORE_BODY,
)
from trioserve.api.pooling.requests import MAX_DOCUMENTS, MAX_INPUTS, EmbeddingRequest
from trioserve.api.shared.messages import Message
from trioserve.errors import InvalidParameter, NotSupported, RequestError

from ..decoders import MINIMAL as FIELDS

BODIES: dict[str, BodyDecoder[Any]] = {
    "embedding": EMBEDDING_BODY,
    "pooling": POOLING_BODY,
    "classification": CLASSIFICATION_BODY,
    "score": SCORE_BODY,
    "rerank": RERANK_BODY,
    "cohere": COHERE_EMBED_BODY,
}
MINIMAL = {name: FIELDS[body.request_type.__name__] for name, body in BODIES.items()}
# Longer than a piece that is decoded in one call.
LONG = "word " * 20_000

CHAT = [{"role": "user", "content": "hi"}]


def decode(endpoint: str, **fields: Any) -> Any:
    return BODIES[endpoint].decode(json.dumps(MINIMAL[endpoint] | fields).encode())


def embedding(**fields: Any) -> EmbeddingRequest:
    return EMBEDDING_BODY.decode(json.dumps(fields).encode())


def refuse(endpoint: str, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode(endpoint, **fields)
    assert caught.value.status == 400
    assert len(str(caught.value)) < 250
    return caught.value


# Inputs.


def test_input_comes_in_four_forms_long_or_short() -> None:
    for value, items in (
        ("a", ("a",)),
        ("", ("",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        ([LONG, "b"], (LONG, "b")),
        ([7] * 50_000, ((7,) * 50_000,)),
        ([[7] * 50_000, [1]], ((7,) * 50_000, (1,))),
    ):
        request = embedding(input=value)
        assert request.items == items
        assert request.param == "input"


@pytest.mark.parametrize("field", ["input", "messages"])
@pytest.mark.parametrize("size", ["hi", LONG], ids=["short", "long"])
def test_one_chat_or_several_come_in_either_field(field: str, size: str) -> None:
    chat = [{"role": "user", "content": size}]
    message = Message(role="user", content=size)
    assert embedding(**{field: chat}).items == ((message,),)
    request = embedding(**{field: [chat, chat * 2]})
    assert request.items == ((message,), (message, message))
    assert request.param == field


def test_spaces_between_are_json_too() -> None:
    body = b'{"input" : [ \n ' + b" " * 70_000 + b"[ 1 , 2 ] , [ 3 ] ] }"
    assert EMBEDDING_BODY.decode(body).items == ((1, 2), (3,))


def test_an_input_that_is_none_names_its_place() -> None:
    for value, param in (
        (None, "input"),
        (1, "input"),
        (True, "input"),
        ({}, "input"),
        ([], "input"),
        ([[]], "input[0]"),
        ([[1], []], "input[1]"),
        ([None], "input[0]"),
        (["a", 1], "input[1]"),
        (["a", [1]], "input[1]"),
        ([LONG, 1], "input[1]"),
        ([LONG, None], "input[1]"),
        ([1, "a"], "input"),
        ([-1], "input"),
        ([2**31], "input"),
        ([1.5], "input"),
        ([[1], "a"], "input[1]"),
        ([[1], ["a"]], "input[1]"),
        ([[1] * 50_000, ["a"]], "input[1]"),
        ([[[1]]], "input[0]"),
        ([{}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([[{"role": "user"}]], "input[0][0].content"),
        ([[{"role": 1, "content": "a"}]], "input[0][0].role"),
        (["a"] * (MAX_INPUTS + 1), "input"),
        (["word " * 20] * (MAX_INPUTS + 1), "input"),
        ([[1]] * (MAX_INPUTS + 1), "input"),
        ([CHAT] * (MAX_INPUTS + 1), "input"),
    ):
        error = refuse("embedding", input=value)
        assert error.param is not None, str(value)[:24]
        assert error.param.startswith(param), str(value)[:24]


@pytest.mark.parametrize("item", ['""', "[1]", "[{}]"])
def test_a_list_of_millions_is_refused_before_it_is_decoded(item: str) -> None:
    body = ('{"input":[%s]}' % ",".join([item] * 500_000)).encode()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidParameter):
            EMBEDDING_BODY.decode(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(body)


def test_as_many_inputs_as_openai_takes_are_taken() -> None:
    assert len(embedding(input=["a"] * MAX_INPUTS).items) == MAX_INPUTS


def test_input_and_messages_exclude_each_other() -> None:
    assert refuse("embedding", messages=CHAT).param == "input"


def test_chats_may_contain_text_only() -> None:
    text = {"type": "text", "text": "a"}
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    request = embedding(messages=[{"role": "user", "content": [text]}])
    assert request.has_chats
    error = refuse(
        "embedding", input=None, messages=[[{"role": "user", "content": [text, image]}]]
    )
    assert isinstance(error, NotSupported)
    assert error.param == "messages[0][0].content[1].type"


@pytest.mark.parametrize(
    "name",
    [
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "chat_template_kwargs",
    ],
)
def test_fields_of_chats_are_refused_without_chats(name: str) -> None:
    value = {"chat_template": "x", "chat_template_kwargs": {"a": 1}}.get(name, True)
    assert getattr(embedding(messages=CHAT, **{name: value}), name) == value
    assert refuse("embedding", **{name: value}).param == name


def test_prompt_names_are_for_texts_only() -> None:
    assert embedding(input="a", prompt_name="query").prompt_name == "query"
    assert refuse("embedding", input=[1], prompt_name="query").param == "prompt_name"


def test_special_tokens_are_not_put_around_ids() -> None:
    error = refuse("embedding", input=[1], add_special_tokens=True)
    assert error.param == "add_special_tokens"
    assert embedding(input=[1], add_special_tokens=False).items == ((1,),)


# Fields.


def test_a_wrong_field_is_named() -> None:
    for endpoint, fields, param in (
        ("embedding", {"encoding_format": "hex"}, "encoding_format"),
        ("embedding", {"embed_dtype": "int8"}, "embed_dtype"),
        ("embedding", {"embed_dtype": "float16"}, "embed_dtype"),
        ("embedding", {"endianness": "big"}, "endianness"),
        ("embedding", {"endianness": "middle"}, "endianness"),
        ("embedding", {"dimensions": "8"}, "dimensions"),
        ("embedding", {"dimensions": 2**63}, "dimensions"),
        ("embedding", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("embedding", {"truncation_side": "up"}, "truncation_side"),
        ("embedding", {"long_text": "burn"}, "long_text"),
        ("embedding", {"use_activation": 1}, "use_activation"),
        ("embedding", {"normalize": True}, "normalize"),
        ("embedding", {"padding": "max_length"}, "padding"),
        ("embedding", {"cache_salt": ""}, "cache_salt"),
        ("embedding", {"priority": 1.5}, "priority"),
        ("embedding", {"request_id": "a b"}, "request_id"),
        ("embedding", {"request_id": "a\n"}, "request_id"),
        ("embedding", {"model": ""}, "model"),
        ("embedding", {"model": 5}, "model"),
        ("embedding", {"prompt_name": ""}, "prompt_name"),
        ("pooling", {"task": "score"}, "task"),
        ("pooling", {"task": 1}, "task"),
        ("score", {"data_1": "a"}, "queries"),
        ("score", {"items": ["a"]}, "documents"),
        ("score", {"documents": None}, "documents"),
        ("score", {"documents": []}, "documents"),
        ("score", {"documents": [1]}, "documents[0]"),
        ("score", {"documents": [{"text": 1}]}, "documents[0].text"),
        ("score", {"documents": {"text": "a", "content": []}}, "documents"),
        ("score", {"documents": ["a"] * (MAX_DOCUMENTS + 1)}, "documents"),
        ("score", {"max_tokens_per_query": -1}, "max_tokens_per_query"),
        ("score", {"max_tokens_per_doc": "1"}, "max_tokens_per_doc"),
        ("score", {"instruction": "be fair"}, "instruction"),
        ("rerank", {"query": None}, "query"),
        ("rerank", {"query": ["a"]}, "query"),
        ("rerank", {"documents": None}, "documents"),
        ("rerank", {"top_n": -1}, "top_n"),
        ("rerank", {"return_documents": "yes"}, "return_documents"),
        ("rerank", {"rank_fields": ["title"]}, "rank_fields"),
        ("cohere", {"texts": []}, "texts"),
        ("cohere", {"texts": "a"}, "texts"),
        ("cohere", {"texts": ["a", 1]}, "texts[1]"),
        ("cohere", {"inputs": [{"content": []}]}, "texts"),
        ("cohere", {"texts": None, "inputs": ["a"]}, "inputs[0]"),
        ("cohere", {"texts": ["a"] * (MAX_INPUTS + 1)}, "texts"),
        ("cohere", {"images": ["data:,"]}, "images"),
        ("cohere", {"embedding_types": ["float", "int8"]}, "embedding_types[1]"),
        ("cohere", {"truncate": "MIDDLE"}, "truncate"),
        ("cohere", {"max_tokens": 0}, "max_tokens"),
        ("cohere", {"output_dimension": "8"}, "output_dimension"),
    ):
        assert refuse(endpoint, **fields).param == param


def test_the_error_of_normalize_names_the_alternative() -> None:
    assert "use_activation" in str(refuse("embedding", normalize=False))


# Texts that are scored, and Cohere's.


def test_scored_texts_come_plain_or_wrapped() -> None:
    for value, texts in (
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ({"text": "a"}, ("a",)),
        ([{"text": "a"}, "b"], ("a", "b")),
        ([LONG, {"text": "a"}], (LONG, "a")),
        (
            {
                "content": [
                    {"type": "text", "text": "a "},
                    {"type": "text", "text": "b"},
                ]
            },
            ("a b",),
        ),
    ):
        request = decode("score", documents=value)
        assert request.texts_of("documents") == texts, value
        assert decode("rerank", documents=value).texts == texts


def test_queries_and_documents_have_several_names() -> None:
    for document in ("documents", "items", "data_2", "text_2"):
        for query in ("queries", "data_1", "text_1"):
            body = json.dumps({query: "a", document: ["b", "c"]}).encode()
            request = SCORE_BODY.decode(body)
            assert (request.query_param, request.document_param) == (query, document)
            assert request.texts_of(query) == ("a",)
            assert request.texts_of(document) == ("b", "c")


def test_images_are_not_scored() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    error = refuse("score", documents=["a", {"content": [image]}])
    assert isinstance(error, NotSupported)
    assert error.param == "documents[1].content[0].type"


def test_a_query_may_be_wrapped() -> None:
    assert decode("rerank", query={"text": "a"}).query_text == "a"


def test_cohere_has_texts_and_inputs() -> None:
    assert decode("cohere").plain_texts == ("hi",)
    inputs = [{"content": [{"type": "text", "text": "a"}]}, {"text": "b"}]
    request = decode("cohere", texts=None, inputs=inputs)
    assert request.plain_texts == ("a", "b")
    assert request.param == "inputs"


def test_cohere_types_count_once_and_are_numbers_by_default() -> None:
    assert decode("cohere").types == ("float",)
    named = [*COHERE_TYPES, *COHERE_TYPES]
    assert decode("cohere", embedding_types=named).types == COHERE_TYPES
