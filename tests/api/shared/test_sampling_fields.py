"""Sampling fields of requests become SamplingParams, or an error that names the field."""

from __future__ import annotations

from collections.abc import Callable
import json
from typing import Any

import msgspec
import pytest

from trioserve.api.chat.request import ChatRequest
from trioserve.api.completions.request import CompletionRequest
from trioserve.api.shared.generation import to_sampling
from trioserve.errors import InvalidParameter
from trioserve.types.repetition import RepetitionDetection
from trioserve.types.sampling import SAMPLING_BOUNDS, SamplingParams

from ..decoders import decode_body

MESSAGES = [{"role": "user", "content": "hi"}]


def decode(request_type: type[Any], fields: dict[str, Any]) -> Any:
    return decode_body(request_type, json.dumps(fields).encode())


def chat(**fields: Any) -> ChatRequest:
    return decode(ChatRequest, {"messages": MESSAGES} | fields)


def completion(**fields: Any) -> CompletionRequest:
    return decode(CompletionRequest, {"prompt": "hi"} | fields)


def test_a_bare_request_samples_as_openai_does() -> None:
    assert to_sampling(chat()) == SamplingParams()
    assert to_sampling(completion()) == SamplingParams(max_tokens=16)


def test_the_models_defaults_stand_where_nothing_was_sent() -> None:
    defaults = {
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 50,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
    }
    sampling = to_sampling(chat(temperature=None, top_p=0.5), defaults.items())
    assert sampling == SamplingParams(
        temperature=0.6, top_p=0.5, top_k=50, min_p=0.05, repetition_penalty=1.1
    )


def test_every_sampling_field_is_passed_on() -> None:
    fields: dict[str, Any] = {
        "n": 2,
        "temperature": 0.1,
        "top_p": 0.2,
        "top_k": 3,
        "min_p": 0.4,
        "seed": -5,
        "presence_penalty": 0.6,
        "frequency_penalty": -0.7,
        "repetition_penalty": 1.8,
        "min_tokens": 9,
        "max_tokens": 10,
        "ignore_eos": True,
        "prompt_logprobs": 2,
    }
    expected = SamplingParams(
        **fields, stop_token_ids=(1, 2), logit_bias=((5, -100.0), (6, 1.5))
    )
    extras = {"stop_token_ids": [1, 2], "logit_bias": {"5": -100, "6": 1.5}}
    assert to_sampling(chat(**fields, **extras)) == expected
    assert to_sampling(completion(**fields, **extras)) == expected


@pytest.mark.parametrize("make", [chat, completion])
def test_a_rule_for_repetitions_is_passed_on(make: Callable[..., Any]) -> None:
    rule = {"max_pattern_size": 9, "min_pattern_size": 2, "min_count": 3}
    sampling = to_sampling(make(repetition_detection=rule))
    assert sampling.repetition_detection == RepetitionDetection(**rule)
    sampling = to_sampling(make(repetition_detection={}))
    assert sampling.repetition_detection == RepetitionDetection()
    with pytest.raises(InvalidParameter, match="min_count: must be between 2 and"):
        to_sampling(make(repetition_detection={"max_pattern_size": 9}))


def test_max_completion_tokens_wins() -> None:
    assert to_sampling(chat(max_tokens=5)).max_tokens == 5
    request = chat(max_tokens=5, max_completion_tokens=6)
    assert to_sampling(request).max_tokens == 6


def test_completions_default_to_16_tokens() -> None:
    assert to_sampling(completion(max_tokens=None)).max_tokens == 16


def test_chat_asks_for_logprobs_in_two_fields() -> None:
    for fields, logprobs in (
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ):
        assert to_sampling(chat(**fields)).logprobs == logprobs


@pytest.mark.parametrize(
    ("sent", "most", "is_taken"),
    [(20, 20, True), (21, 20, False), (-1, 20, False), (3, 2, False), (9, -1, True)]
    + [(-1, -1, True), (0, 0, True)],
)
def test_the_server_bounds_logprobs(sent: int, most: int, is_taken: bool) -> None:
    requests: list[tuple[Any, str]] = [
        (chat(logprobs=True, top_logprobs=sent), "top_logprobs"),
        (chat(prompt_logprobs=sent), "prompt_logprobs"),
        (completion(logprobs=sent), "logprobs"),
        (completion(logprobs=sent, echo=True), "logprobs"),
        (completion(prompt_logprobs=sent), "prompt_logprobs"),
    ]
    for request, param in requests:
        if is_taken:
            to_sampling(request, max_logprobs=most)
            continue
        with pytest.raises(InvalidParameter, match="--max-logprobs") as caught:
            to_sampling(request, max_logprobs=most)
        assert caught.value.param == param


def test_named_tokens_are_reported_with_logprobs_alone() -> None:
    request = chat(logprobs=True, logprob_token_ids=[3, 1])
    assert to_sampling(request).logprob_token_ids == (3, 1)
    repeated = completion(logprobs=1, logprob_token_ids=[3, 1, 3])
    assert to_sampling(repeated).logprob_token_ids == (3, 1)
    with pytest.raises(InvalidParameter) as caught:
        to_sampling(completion(logprob_token_ids=[3]))
    assert caught.value.param == "logprob_token_ids"
    with pytest.raises(InvalidParameter, match="not taken with echo"):
        completion(logprobs=1, echo=True, logprob_token_ids=[3])


def test_an_echo_reports_the_prompts_logprobs_too() -> None:
    assert to_sampling(completion(logprobs=3)).prompt_logprobs is None
    assert to_sampling(completion(logprobs=3, echo=True)).prompt_logprobs == 3
    request = completion(logprobs=3, echo=True, prompt_logprobs=1)
    assert to_sampling(request).prompt_logprobs == 1


_SENT_BY_CHAT = {"logprobs": "top_logprobs"}
_BOUNDED = [
    (name, value)
    for name, (low, high) in SAMPLING_BOUNDS.items()
    for value in (low - 1, high + 1)
    # The decoder itself refuses numbers wider than 64 bits.
    if abs(value) < 2**63
]


def test_a_number_out_of_bounds_names_the_field_that_was_sent() -> None:
    for name, value in _BOUNDED:
        with pytest.raises(InvalidParameter) as caught:
            to_sampling(completion(**{name: value}))
        assert caught.value.param == name, value
        sent = _SENT_BY_CHAT.get(name, name)
        flag = {"logprobs": True} if name == "logprobs" else {}
        with pytest.raises(InvalidParameter) as caught:
            to_sampling(chat(**flag, **{sent: value}))
        assert caught.value.param == sent, (name, value)
        assert str(caught.value).startswith(f"{sent}: must be between"), (name, value)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_no_tokens_at_all_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        to_sampling(chat(**{name: 0}))
    assert caught.value.param == name


def test_no_tokens_at_all_are_taken_with_echo_alone() -> None:
    sampling = to_sampling(completion(max_tokens=0, echo=True, logprobs=2))
    assert (sampling.max_tokens, sampling.prompt_logprobs) == (0, 2)
    with pytest.raises(InvalidParameter, match="^max_tokens: must be at least 1, got"):
        to_sampling(completion(max_tokens=0))


def test_sampling_rules_name_the_field() -> None:
    for fields, param in (
        ({"top_p": 0}, "top_p"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {" 1": 1}}, "logit_bias"),
        ({"logit_bias": {"1_0": 1}}, "logit_bias"),
        ({"logit_bias": {"\u0661": 1}}, "logit_bias"),
        ({"logit_bias": {"": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ):
        for make in (chat, completion):
            with pytest.raises(InvalidParameter) as caught:
                to_sampling(make(**fields))
            assert caught.value.param == param, fields


def test_a_request_is_of_its_public_type() -> None:
    assert type(chat(tools=[])) is ChatRequest
    assert msgspec.structs.asdict(chat(tools=[])) == msgspec.structs.asdict(chat())


@pytest.mark.parametrize("words", [[""], ["a"] * 129, "a", [7], ["x" * 2000]])
def test_bad_words_are_short_and_few(words: Any) -> None:
    with pytest.raises(InvalidParameter, match=r"^bad_words"):
        chat(bad_words=words)
