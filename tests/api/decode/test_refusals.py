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
from trioserve.api.pooling.requests import EmbeddingRequest, ScoreRequest
from trioserve.api.shared.generation import to_sampling
from trioserve.api.tokens.requests import TokenizeRequest
from trioserve.errors import InvalidParameter, RequestError

from ..decoders import DECODERS, MINIMAL, decode_body

MESSAGES = [{"role": "user", "content": "hi"}]
CUSTOM = {"type": "custom", "function": {"name": "f"}}


EMBEDS = {"prompt_embeds": "AAAA"}
TURN = {"add_generation_prompt": True, "continue_final_message": True}
SIZE = "truncate_prompt_tokens: must be -1 or at least 1"
ONE_TURN = "continue_final_message: cannot be combined with add_generation_prompt"
NO_MESSAGES = "add_generation_prompt: is only taken with messages"
NO_PROMPT = "prompt: send either prompt or messages"
NO_PLACE = "is not taken with prompt_embeds"


def test_fields_that_exclude_each_other_are_refused() -> None:
    for request_type, fields, message in (
        (
            ChatRequest,
            {"stream_options": {}},
            "stream_options: is only taken with stream",
        ),
        (
            *(ChatRequest, {"stream": True, "prompt_logprobs": 0}),
            "prompt_logprobs: is not taken with stream=true",
        ),
        (ChatRequest, {"truncate_prompt_tokens": 0}, SIZE),
        (ChatRequest, {"truncate_prompt_tokens": -2}, SIZE),
        (
            *(ChatRequest, {"truncation_side": "left"}),
            "truncation_side: is only taken with truncate_prompt_tokens",
        ),
        (
            ChatRequest,
            {"top_logprobs": 1},
            "top_logprobs: is only taken with logprobs=",
        ),
        (ChatRequest, TURN, ONE_TURN),
        (
            *(CompletionRequest, {"prompt": None}),
            "prompt: either prompt or prompt_embeds is required",
        ),
        (
            *(CompletionRequest, {"best_of": 2}),
            "best_of is not supported by this server: must be equal to n",
        ),
        (CompletionRequest, EMBEDS | {"echo": True}, f"echo: {NO_PLACE}"),
        (
            *(CompletionRequest, EMBEDS | {"prompt_logprobs": 0}),
            f"prompt_logprobs: {NO_PLACE}",
        ),
        (CompletionRequest, EMBEDS | {"suffix": "x"}, f"suffix: {NO_PLACE}"),
        (
            *(CompletionRequest, {"prompt_embeds": []}),
            "prompt_embeds: takes 1 to 1024 tensors",
        ),
        (
            *(CompletionRequest, {"prompt": ["a", 1]}),
            "prompt: must not mix strings, token ids and lists of token ids",
        ),
        (TokenizeRequest, {"prompt": None}, NO_PROMPT),
        (TokenizeRequest, {"messages": MESSAGES}, NO_PROMPT),
        (TokenizeRequest, {"add_generation_prompt": True}, NO_MESSAGES),
        (TokenizeRequest, {"prompt": None, "messages": MESSAGES} | TURN, ONE_TURN),
        (EmbeddingRequest, {"input": None}, "input: send either input or messages"),
        (EmbeddingRequest, {"truncate_prompt_tokens": -2}, SIZE),
        (
            *(EmbeddingRequest, {"truncate_prompt_tokens": 5, "long_text": "chunk"}),
            "long_text: must be truncate if truncate_prompt_tokens is sent",
        ),
        (EmbeddingRequest, {"add_generation_prompt": True}, NO_MESSAGES),
        (
            *(ScoreRequest, {"long_text": "chunk"}),
            "long_text: chunk is not possible with scores",
        ),
        (
            ScoreRequest,
            {"queries": None},
            "queries: send one of queries, data_1, text_1",
        ),
        (
            *(ScoreRequest, {"documents": [{}]}),
            "documents[0]: must have either text or content",
        ),
        (
            *(ScoreRequest, {"documents": [{"content": [{"type": "text"}]}]}),
            "documents[0].content[0].text: is required",
        ),
        (
            *(
                ChatRequest,
                {"messages": [{"role": "assistant", "tool_calls": [CUSTOM]}]},
            ),
            "messages[0].tool_calls[0].type: must be one of function, not 'custom'",
        ),
        (CohereEmbedRequest, {"texts": None}, "texts: send either texts or inputs"),
        (
            *(CohereEmbedRequest, {"truncate": "NONE", "max_tokens": 5}),
            "max_tokens: is only taken with START or END",
        ),
    ):
        body = json.dumps(MINIMAL[request_type.__name__] | fields).encode()
        with pytest.raises(RequestError) as caught:
            decode_body(request_type, body)
        assert str(caught.value).startswith(message), (request_type, fields)
        assert message.startswith(caught.value.param or "?"), (request_type, fields)


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


@pytest.mark.parametrize("request_type", DECODERS)
def test_errors_list_the_values_of_each_field_with_few_values(
    request_type: type[msgspec.Struct],
) -> None:
    for name, choices in list_choices(request_type):
        with pytest.raises(InvalidParameter) as caught:
            body = MINIMAL[request_type.__name__] | {name: "no such"}
            decode_body(request_type, json.dumps(body).encode())
        assert caught.value.param == name
        for choice in choices:
            assert choice in str(caught.value)


def list_choices(struct: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """Yield each field of a struct that takes only certain values, and the values."""
    for field in inspect.type_info(struct).fields:  # type: ignore[attr-defined]
        for each in getattr(field.type, "types", (field.type,)):
            if isinstance(each, inspect.LiteralType):
                yield field.name, each.values
