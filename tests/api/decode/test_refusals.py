"""The errors of requests whose fields contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
import json
from typing import Any

import msgspec
from msgspec import inspect
import pytest

from trioserve.api.chat.request import ChatRequest
from trioserve.api.cohere.requests import CohereEmbedRequest
from trioserve.api.completions.request import CompletionRequest
from trioserve.api.decode.fields import ModelRequest
from trioserve.api.pooling.requests import EmbeddingRequest, ScoreRequest
from trioserve.api.shared.generation import to_sampling
from trioserve.api.tokens.requests import TokenizeRequest
from trioserve.errors import InvalidParameter, RequestError

from ..decoders import DECODERS, decode_body

MESSAGES = [{"role": "user", "content": "hi"}]


def read_refusal(request_type: type[ModelRequest], fields: dict[str, Any]) -> str:
    with pytest.raises(RequestError) as caught:
        decode_body(request_type, json.dumps(fields).encode())
    return str(caught.value)


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"stream_options": {}},
            "stream_options: is only taken with stream=true",
        ),
        (
            {"stream": True, "prompt_logprobs": 0},
            "prompt_logprobs: is not taken with stream=true",
        ),
        (
            {"truncate_prompt_tokens": 0},
            "truncate_prompt_tokens: must be -1 or at least 1",
        ),
        (
            {"truncate_prompt_tokens": -2},
            "truncate_prompt_tokens: must be -1 or at least 1",
        ),
        (
            {"truncation_side": "left"},
            "truncation_side: is only taken with truncate_prompt_tokens",
        ),
        (
            {"top_logprobs": 1},
            "top_logprobs: is only taken with logprobs=true",
        ),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message: cannot be combined with add_generation_prompt",
        ),
    ],
)
def test_fields_of_a_chat_that_exclude_each_other(
    fields: dict[str, Any], message: str
) -> None:
    assert read_refusal(ChatRequest, {"messages": MESSAGES} | fields) == message


@pytest.mark.parametrize(
    "fields, message",
    [
        ({}, "prompt: either prompt or prompt_embeds is required"),
        (
            {"prompt": "hi", "best_of": 2},
            "best_of is not supported by this server: must be equal to n",
        ),
        (
            {"prompt_embeds": "AAAA", "echo": True},
            "echo: is not taken with prompt_embeds",
        ),
        (
            {"prompt_embeds": "AAAA", "prompt_logprobs": 0},
            "prompt_logprobs: is not taken with prompt_embeds",
        ),
        ({"prompt_embeds": []}, "prompt_embeds: takes 1 to 1024 tensors"),
        (
            {"prompt": ["a", 1]},
            "prompt: must not mix strings, token ids and lists of token ids",
        ),
    ],
)
def test_fields_of_a_completion_that_exclude_each_other(
    fields: dict[str, Any], message: str
) -> None:
    assert read_refusal(CompletionRequest, fields) == message


@pytest.mark.parametrize(
    "fields, message",
    [
        ({}, "prompt: send either prompt or messages"),
        (
            {"prompt": "hi", "messages": MESSAGES},
            "prompt: send either prompt or messages",
        ),
        (
            {"prompt": "hi", "add_generation_prompt": True},
            "add_generation_prompt: is only taken with messages",
        ),
        (
            {
                "messages": MESSAGES,
                "add_generation_prompt": True,
                "continue_final_message": True,
            },
            "continue_final_message: cannot be combined with add_generation_prompt",
        ),
    ],
)
def test_fields_of_tokenize_that_exclude_each_other(
    fields: dict[str, Any], message: str
) -> None:
    assert read_refusal(TokenizeRequest, fields) == message


@pytest.mark.parametrize(
    "request_type, fields, message",
    [
        (EmbeddingRequest, {}, "input: send either input or messages"),
        (
            EmbeddingRequest,
            {"input": "hi", "truncate_prompt_tokens": -2},
            "truncate_prompt_tokens: must be -1 or at least 1",
        ),
        (
            EmbeddingRequest,
            {"input": "hi", "truncate_prompt_tokens": 5, "long_text": "chunk"},
            "long_text: must be truncate if truncate_prompt_tokens is sent",
        ),
        (
            EmbeddingRequest,
            {"input": "hi", "add_generation_prompt": True},
            "add_generation_prompt: is only taken with messages",
        ),
        (
            ScoreRequest,
            {"queries": "a", "documents": "b", "long_text": "chunk"},
            "long_text: chunk is not possible with scores",
        ),
        (
            ScoreRequest,
            {"documents": "b"},
            "queries: send one of queries, data_1, text_1",
        ),
        (CohereEmbedRequest, {}, "texts: send either texts or inputs"),
        (
            CohereEmbedRequest,
            {"texts": ["a"], "truncate": "NONE", "max_tokens": 5},
            "max_tokens: is only taken with START or END",
        ),
    ],
)
def test_fields_of_models_that_pool_that_exclude_each_other(
    request_type: type[ModelRequest], fields: dict[str, Any], message: str
) -> None:
    assert read_refusal(request_type, fields) == message


@pytest.mark.parametrize(
    "key, is_taken",
    [("0", True), ("9999999999", True), ("10000000000", False), ("-1", False)],
)
def test_keys_of_a_bias_are_token_ids_of_ten_digits_at_most(
    key: str, is_taken: bool
) -> None:
    body = {"prompt": "hi", "logit_bias": {key: 1.0}}
    request = decode_body(CompletionRequest, json.dumps(body).encode())
    if is_taken:
        assert to_sampling(request).logit_bias == ((int(key), 1.0),)
        return
    with pytest.raises(RequestError) as caught:
        to_sampling(request)
    assert str(caught.value) == f"logit_bias: {key!r} is not a token id"


@pytest.mark.parametrize(
    ("keys", "listed"),
    [
        (["a", "7", "-3"], "'a', '-3'"),
        (["k" * 999, "b\n"], f"'{'k' * 64}', 'b\\n'"),
        (list("abcdefghijk"), "'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h' and 3 more"),
    ],
)
def test_all_wrong_keys_of_a_bias_are_named(keys: list[str], listed: str) -> None:
    body = {"prompt": "hi", "logit_bias": dict.fromkeys(keys, 1.0)}
    request = decode_body(CompletionRequest, json.dumps(body).encode())
    with pytest.raises(RequestError) as caught:
        to_sampling(request)
    assert str(caught.value) == f"logit_bias: {listed} are not token ids"


@pytest.mark.parametrize("sent", [[], {}, None])
def test_no_plug_in_may_be_sent_in_three_ways(sent: object) -> None:
    body = {"prompt": "hi", "logits_processors": sent}
    request = decode_body(CompletionRequest, json.dumps(body).encode())
    assert to_sampling(request).logits_processors == ()


def test_plug_ins_come_as_an_object() -> None:
    refusal = read_refusal(
        CompletionRequest, {"prompt": "hi", "logits_processors": ["x"]}
    )
    assert refusal.startswith("logits_processors: ")


def test_arguments_of_a_plug_in_are_handed_on() -> None:
    body = {"prompt": "hi", "logits_processors": {"a": {"size": 3}, "b": None}}
    request = decode_body(CompletionRequest, json.dumps(body).encode())
    processors = to_sampling(request).logits_processors
    assert processors == (("a", {"size": 3}), ("b", {}))


def test_a_prompt_that_is_no_utf8_is_refused_by_its_name() -> None:
    with pytest.raises(RequestError, match="^prompt: is not valid UTF-8$") as caught:
        decode_body(CompletionRequest, b'{"prompt":"\xff"}')
    assert caught.value.param == "prompt"


def test_a_body_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(RequestError, match="^The body is not valid UTF-8.$"):
        decode_body(CompletionRequest, b'{"user":"\xff"}')


@pytest.mark.parametrize(
    "document, message",
    [
        ({}, "documents[0]: must have either text or content"),
        (
            {"content": [{"type": "text"}]},
            "documents[0].content[0].text: is required",
        ),
    ],
)
def test_a_document_without_text_is_refused_by_its_place(
    document: dict[str, Any], message: str
) -> None:
    fields = {"queries": "a", "documents": [document]}
    assert read_refusal(ScoreRequest, fields) == message


@pytest.mark.parametrize("request_type", DECODERS)
def test_errors_list_the_values_of_each_field_with_few_values(
    request_type: type[msgspec.Struct],
) -> None:
    for name, choices in list_choices(request_type):
        with pytest.raises(InvalidParameter) as caught:
            body = {"messages": MESSAGES, name: "no such"}
            decode_body(request_type, json.dumps(body).encode())
        assert caught.value.param == name
        for choice in choices:
            assert choice in str(caught.value)


def test_errors_list_the_values_of_a_field_in_a_list() -> None:
    call = {"type": "custom", "function": {"name": "f"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    refusal = read_refusal(ChatRequest, {"messages": [message]})
    assert (
        refusal
        == "messages[0].tool_calls[0].type: must be one of function, not 'custom'"
    )


def list_choices(struct: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """Yield each field of a struct that takes only certain values, and the values."""
    for field in inspect.type_info(struct).fields:  # type: ignore[attr-defined]
        for each in getattr(field.type, "types", (field.type,)):
            if isinstance(each, inspect.LiteralType):
                yield field.name, each.values
