"""Answers: the official client parses them, and they have vLLM's fields."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
from openai.types import Completion as OpenAICompletion
from openai.types.chat import ChatCompletion as OpenAIChatCompletion
import pytest

from trioserve.api.chat.answers import ChatChoice, ChatCompletion, ChatMessage
from trioserve.api.completions.answers import (
    Completion,
    CompletionChoice,
    build_completion_logprobs,
)
from trioserve.api.shared.logprobs import (
    TokenTexts,
    build_chat_logprobs,
    build_prompt_logprobs,
)
from trioserve.api.tokens.answers import Detokenized, Tokenized
from trioserve.errors import EngineDied, InvalidParameter, ModelNotFound, QueueFull
from trioserve.http.record.usage import Usage
from trioserve.http.wire.error_body import ErrorBody, encode
from trioserve.server.admin.status import Version
from trioserve.types.output import TokenLogprobs

# Token 3 is the first half of a character.
TOKENS = {0: b"a", 1: b"bc", 2: "\u00e9".encode(), 3: b"\xc3"}
TEXTS = TokenTexts(TOKENS.__getitem__)
IDS = TokenTexts(TOKENS.__getitem__, as_token_ids=True)

FIRST = TokenLogprobs(token_id=1, logprob=-0.5, rank=2, top=((0, -0.25), (1, -0.5)))
SECOND = TokenLogprobs(token_id=3, logprob=-math.inf, rank=9, top=((2, -0.75),))

USAGE = Usage.of(num_prompt_tokens=5, num_output_tokens=2, num_cached_tokens=4)


def load(response: msgspec.Struct) -> Any:
    return json.loads(encode(response))


def make_chat(**fields: Any) -> ChatCompletion:
    choice = ChatChoice(
        index=0,
        message=ChatMessage(content="hello"),
        logprobs=build_chat_logprobs([FIRST, SECOND], TEXTS),
        finish_reason="stop",
        stop_reason=None,
    )
    return ChatCompletion(
        id="chatcmpl-1", created=1, model="m", choices=(choice,), usage=USAGE, **fields
    )


def make_completion() -> Completion:
    choice = CompletionChoice(
        index=0,
        text="hello",
        logprobs=build_completion_logprobs([1, 3], [FIRST, SECOND], TEXTS, [0, 2]),
        finish_reason="length",
        stop_reason=None,
    )
    return Completion(id="cmpl-1", created=1, model="m", choices=(choice,), usage=USAGE)


def test_the_official_client_parses_a_chat() -> None:
    parsed = OpenAIChatCompletion.model_validate(load(make_chat()), strict=True)
    assert parsed.choices[0].message.content == "hello"
    assert parsed.choices[0].finish_reason == "stop"
    assert parsed.usage and parsed.usage.total_tokens == 7
    assert parsed.usage.prompt_tokens_details
    assert parsed.usage.prompt_tokens_details.cached_tokens == 4
    logprobs = parsed.choices[0].logprobs
    assert logprobs and logprobs.content
    assert [entry.token for entry in logprobs.content] == ["bc", "\ufffd"]
    assert logprobs.content[0].top_logprobs[0].token == "a"


def test_the_official_client_parses_a_completion() -> None:
    parsed = OpenAICompletion.model_validate(load(make_completion()), strict=True)
    assert parsed.choices[0].text == "hello"
    logprobs = parsed.choices[0].logprobs
    assert logprobs and logprobs.tokens == ["bc", "\ufffd"]


def test_null_is_sent_where_openai_sends_it_and_extras_only_on_demand() -> None:
    choice = ChatChoice(
        index=0,
        message=ChatMessage(content=""),
        logprobs=None,
        finish_reason=None,
        stop_reason=None,
    )
    assert load(choice) == {
        "index": 0,
        "message": {"content": "", "role": "assistant", "refusal": None},
        "logprobs": None,
        "finish_reason": None,
        "stop_reason": None,
    }
    # Clients of vLLM read these without asking for them.
    assert load(make_chat())["prompt_logprobs"] is None
    assert load(make_chat())["kv_transfer_params"] is None
    assert load(make_chat(prompt_token_ids=(1, 2)))["prompt_token_ids"] == [1, 2]


def test_bytes_of_a_token_are_its_own_even_inside_a_character() -> None:
    content = load(build_chat_logprobs([SECOND], TEXTS))["content"]
    assert content[0]["bytes"] == [0xC3]
    assert content[0]["top_logprobs"][0]["bytes"] == [0xC3, 0xA9]


@pytest.mark.parametrize("impossible", [-math.inf, math.nan])
def test_numbers_that_json_lacks_become_the_floor(impossible: float) -> None:
    entry = TokenLogprobs(
        token_id=0, logprob=impossible, rank=1, top=((0, impossible),)
    )
    (token,) = load(build_chat_logprobs([entry], TEXTS))["content"]
    assert token["logprob"] == token["top_logprobs"][0]["logprob"] == -9999.0
    legacy = load(build_completion_logprobs([0], [entry], TEXTS, [0]))
    assert legacy["token_logprobs"] == [-9999.0]
    assert legacy["top_logprobs"] == [{"a": -9999.0}]
    prompt = msgspec.to_builtins(build_prompt_logprobs([entry], TEXTS))
    assert prompt[1]["0"]["logprob"] == -9999.0


def test_the_legacy_form_names_the_token_itself_first() -> None:
    # The prompt's first token has no logprob, because no token precedes it.
    report = build_completion_logprobs(
        [0, 1, 3], [None, FIRST, SECOND], TEXTS, [10, 11, 13]
    )
    assert load(report) == {
        "text_offset": [10, 11, 13],
        "token_logprobs": [None, -0.5, -9999.0],
        "tokens": ["a", "bc", "\ufffd"],
        "top_logprobs": [
            None,
            {"bc": -0.5, "a": -0.25},
            {"\ufffd": -9999.0, "\u00e9": -0.75},
        ],
    }
    tops = load(report)["top_logprobs"]
    assert [next(iter(top)) for top in tops[1:]] == ["bc", "\ufffd"]


def test_tokens_with_the_same_text_have_their_ids_as_keys() -> None:
    """Clients find the token itself under its text."""
    texts = TokenTexts({3: b"\xc3", 4: b"\xc2", 5: b"a", 6: b"\xa9"}.__getitem__)
    entry = TokenLogprobs(
        token_id=6, logprob=-3.0, rank=3, top=((3, -0.5), (5, -1.0), (4, -2.0))
    )
    (top,) = load(build_completion_logprobs([6], [entry], texts, [0]))["top_logprobs"]
    assert list(top.items()) == [
        ("\ufffd", -3.0),
        ("token_id:3", -0.5),
        ("a", -1.0),
        ("token_id:4", -2.0),
    ]


def test_tokens_may_be_shown_as_ids() -> None:
    (token,) = load(build_chat_logprobs([FIRST], IDS))["content"]
    assert token["token"] == "token_id:1"
    assert token["bytes"] == list(b"bc")
    legacy = load(build_completion_logprobs([1, 0], [FIRST, None], IDS, [0, 2]))
    assert legacy["tokens"] == ["token_id:1", "token_id:0"]
    assert legacy["top_logprobs"][0] == {"token_id:0": -0.25, "token_id:1": -0.5}


def test_prompt_logprobs_have_vllms_form() -> None:
    assert msgspec.to_builtins(build_prompt_logprobs([FIRST, SECOND], TEXTS)) == (
        None,
        {
            "1": {"logprob": -0.5, "rank": 2, "decoded_token": "bc"},
            "0": {"logprob": -0.25, "rank": 1, "decoded_token": "a"},
        },
        {
            "3": {"logprob": -9999.0, "rank": 9, "decoded_token": "\ufffd"},
            "2": {"logprob": -0.75, "rank": 1, "decoded_token": "\u00e9"},
        },
    )


@pytest.mark.parametrize(
    ("error", "type_", "param", "code"),
    [
        (InvalidParameter("n", "is wrong"), "BadRequestError", "n", 400),
        (InvalidParameter(None, "is wrong"), "BadRequestError", None, 400),
        (ModelNotFound("x", served=["y"]), "NotFoundError", "model", 404),
        (
            QueueFull(
                "texts", num_open=9, num_possible=0, num_new=1, retry_after_seconds=1
            ),
            *("RateLimitError", None, 429),
        ),
        (EngineDied(), "InternalServerError", None, 500),
    ],
)
def test_errors_have_openais_body(
    error: Any, type_: str, param: str | None, code: int
) -> None:
    assert load(ErrorBody.of(error)) == {
        "error": {"message": str(error), "type": type_, "param": param, "code": code}
    }


def test_small_answers() -> None:
    tokenized = Tokenized(count=2, max_model_len=64, tokens=(1, 2))
    assert load(tokenized) == {
        "count": 2,
        "max_model_len": 64,
        "tokens": [1, 2],
        "token_strs": None,
    }
    assert load(Detokenized(prompt="a")) == {"prompt": "a"}
    assert load(Version(version="1")) == {"version": "1"}
