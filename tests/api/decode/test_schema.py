"""Requests: any bytes become a struct, or an error that names the field."""

from __future__ import annotations

from collections.abc import Callable
import json
from typing import Any

from hypothesis import given, strategies as st
import msgspec
import pytest

from trioserve.api.chat.body import CHAT_BODY
from trioserve.api.chat.request import ChatRequest
from trioserve.api.completions.body import COMPLETION_BODY
from trioserve.api.completions.request import CompletionPrompt, CompletionRequest
from trioserve.api.decode.body import forget
from trioserve.api.decode.decoder import BodyDecoder
from trioserve.api.decode.fields import ModelRequest
from trioserve.api.decode.values import decode_ids
from trioserve.api.shared.message_mappings import MessageMappings
from trioserve.api.tokens.requests import DETOKENIZE_BODY, TOKENIZE_BODY
from trioserve.errors import (
    ContextLengthExceeded,
    InvalidParameter,
    NotSupported,
    RequestError,
)
from trioserve.types.structured import StructuredOutput

from ..decoders import MINIMAL as FIELDS

decode_chat = CHAT_BODY.decode
decode_completion = COMPLETION_BODY.decode

BODIES: dict[str, BodyDecoder[Any]] = {
    "chat": CHAT_BODY,
    "completion": COMPLETION_BODY,
    "tokenize": TOKENIZE_BODY,
    "detokenize": DETOKENIZE_BODY,
}
MINIMAL = {name: FIELDS[body.request_type.__name__] for name, body in BODIES.items()}


def encode(endpoint: str, **fields: Any) -> bytes:
    return json.dumps(MINIMAL[endpoint] | fields).encode()


def chat(**fields: Any) -> ChatRequest:
    return decode_chat(encode("chat", **fields))


def completion(**fields: Any) -> CompletionRequest:
    return decode_completion(encode("completion", **fields))


# Malformed bodies.


def test_numbers_of_any_length_name_their_field() -> None:
    for name in ("max_tokens", "seed", "n", "top_k", "priority"):
        for sign in ("", "-"):
            for number in ("9" * 25, "9" * 400, "9" * 5000, "1e999", "1.5"):
                body = f'{{"prompt":"a","{name}":{sign}{number}}}'.encode()
                with pytest.raises(InvalidParameter) as caught:
                    decode_completion(body)
                assert caught.value.param == name, (number, sign)
                assert len(str(caught.value)) < 200, (number, name)


def test_of_two_fields_of_one_name_the_last_counts() -> None:
    assert decode_completion(b'{"prompt":"a","prompt":"b"}').prompts == ("b",)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The body is empty."),
        (b'{"user":"\xff"}', "The body is not valid UTF-8."),
        (b'{"prompt":"\xff"}', "prompt: is not valid UTF-8"),
        (
            b'{"prompt":"\\ud83d"}',
            "The body is not valid JSON: it ends early, or a string",
        ),
        (
            b'{"prompt":"a","unknown":' + b"[" * 5000 + b"]" * 5000 + b"}",
            "The body is nested too deeply.",
        ),
    ],
)
def test_a_malformed_body_is_explained(body: bytes, message: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        decode_completion(body)
    assert str(caught.value).startswith(message)


# Fields that are wrong.


BOTH: list[tuple[dict[str, Any], str]] = [
    ({"temperature": "1"}, "temperature"),
    ({"temperature": [1]}, "temperature"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 1.0}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"stream": 1}, "stream"),
    ({"stream": "true"}, "stream"),
    ({"n": [1]}, "n"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": [1]}, "stop[0]"),
    ({"stop": ["a"] * 33}, "stop"),
    ({"stop": "a" * 1025}, "stop"),
    ({"stop": ["a" * 1025]}, "stop[0]"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [1, True]}, "stop_token_ids[1]"),
    ({"stop_token_ids": [2**31]}, "stop_token_ids[0]"),
    ({"logit_bias": {"1": "x"}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"priority": 2**63}, "priority"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": "x" * 1025}, "cache_salt"),
    ({"request_id": ""}, "request_id"),
    ({"request_id": "a\r\nX: y"}, "request_id"),
    ({"request_id": "a\n"}, "request_id"),
    ({"request_id": "x" * 129}, "request_id"),
    ({"model": ""}, "model"),
    ({"model": "x" * 1025}, "model"),
    ({"user": 1}, "user"),
    ({"stream_options": {}, "stream": False}, "stream_options"),
    (
        {"stream_options": {"include_usage": 1}, "stream": True},
        "stream_options.include_usage",
    ),
    ({"logprob_token_ids": [-1]}, "logprob_token_ids[0]"),
    ({"logprob_token_ids": [1] * 129}, "logprob_token_ids"),
]
CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
    ({"messages": [{"role": "tool", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "", "content": ""}]}, "messages[0].role"),
    ({"messages": [{"role": 1, "content": ""}]}, "messages[0].role"),
    ({"truncation_side": "x - at `$.n`"}, "truncation_side"),
    ({"messages": [{"role": "x" * 9999}]}, "messages[0].role"),
    (
        {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
        "messages[0].content[0].type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    (
        {"messages": [{"role": "user", "content": ["a"]}]},
        "messages[0].content[0]",
    ),
    (
        {"messages": [{"role": "user", "content": ""}] * 16_385},
        "messages",
    ),
    ({"top_logprobs": 1, "logprobs": False}, "top_logprobs"),
    ({"logprob_token_ids": [1]}, "logprob_token_ids"),
    ({"logprobs": 1}, "logprobs"),
    ({"messages": [{"role": "x", "function_call": {}}]}, "messages[0].function_call"),
    ({"messages": [{"role": "x", "audio": {"id": "a"}}]}, "messages[0].audio"),
    ({"messages": [{"role": "x", "refusal": "No."}]}, "messages[0].refusal"),
    (
        {"messages": [{"role": "x", "content": [{"type": "input_audio"}]}]},
        "messages[0].content[0].type",
    ),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"chat_template_kwargs": "a"}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a": "x" * 16_384}}, "chat_template_kwargs"),
]
COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": 1}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": [1, [2]]}, "prompt"),
    ({"prompt": [[1], []]}, "prompt[1]"),
    ({"prompt": [[1], ["a"]]}, "prompt[1][0]"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [None]}, "prompt[0]"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [[0, -1]]}, "prompt[0][1]"),
    ({"prompt": [2**31]}, "prompt[0]"),
    ({"prompt": ["a"] * 1025}, "prompt"),
    ({"prompt": [[1]] * 1025}, "prompt"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": "yes"}, "echo"),
    ({"prompt": ["a"] * 1024, "suffix": "b" * 16_385}, "suffix"),
    ({"best_of": "1"}, "best_of"),
]


def test_a_wrong_field_is_named() -> None:
    for endpoint, fields, param in (
        *(("chat", *row) for row in BOTH + CHATS),
        *(("completion", *row) for row in BOTH + COMPLETIONS),
        ("tokenize", {"prompt": 1}, "prompt"),
        (
            "tokenize",
            {"prompt": None, "messages": [{"role": "user"}]},
            "messages[0].content",
        ),
        ("tokenize", {"add_special_tokens": 1}, "add_special_tokens"),
        ("detokenize", {"tokens": [1, -1]}, "tokens[1]"),
        ("detokenize", {"tokens": "a"}, "tokens"),
        ("detokenize", {"tokens": [True]}, "tokens[0]"),
    ):
        with pytest.raises(RequestError) as caught:
            BODIES[endpoint].decode(encode(endpoint, **fields))
        assert caught.value.param == param, (endpoint, fields)
        assert len(str(caught.value)) < 200, (endpoint, fields)


def test_a_wrong_word_is_quoted_on_one_line_and_shortly() -> None:
    for wrong, quoted in [
        ("middle", "middle"),
        ("a\u2028b", r"a\u2028b"),
        ("x" * 99, "x" * 64 + "..."),
    ]:
        with pytest.raises(InvalidParameter) as caught:
            chat(truncation_side=wrong)
        assert str(caught.value) == (
            f"truncation_side: must be one of left, right, not '{quoted}'"
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": "5"}, "max_tokens: expected int or null, got str"),
        ({"prompt": []}, "prompt: must have a length of at least 1"),
        ({"prompt": [-1]}, "prompt[0]: must be at least 0"),
        ({"stop_token_ids": [2**31]}, "stop_token_ids[0]: must be at most 2147483647"),
        ({"cache_salt": "a" * 1025}, "cache_salt: must have a length of at most 1024"),
        (
            {"request_id": "a b"},
            "request_id: must be 1 to 128 visible ASCII characters",
        ),
    ],
)
def test_a_bound_is_explained(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        completion(**fields)
    assert str(caught.value) == message


# Fields that are known and not implemented.


@pytest.mark.parametrize("value", [b'"\xff"', b'"\\ud800"', b"[" * 30 + b"]" * 30])
def test_a_value_that_cannot_be_decoded_is_not_neutral(value: bytes) -> None:
    body = b'{"messages":[{"role":"user","content":"a"}],"tools":' + value + b"}"
    with pytest.raises(RequestError):
        decode_chat(body)


def test_best_of_may_only_repeat_n() -> None:
    assert completion(best_of=1).best_of == 1
    assert completion(best_of=3, n=3).best_of == 3
    with pytest.raises(NotSupported) as caught:
        completion(best_of=3, n=2)
    assert caught.value.param == "best_of"


# The meaning of fields.


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([0, 5], ((0, 5),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_a_prompt_is_one_of_four_forms(
    prompt: Any, prompts: tuple[str | tuple[int, ...], ...]
) -> None:
    assert completion(prompt=prompt).prompts == prompts


def test_a_prompt_of_many_ids_is_not_many_prompts() -> None:
    (prompt,) = completion(prompt=[7] * 5000).prompts
    assert len(prompt) == 5000


def test_a_request_without_options_has_defaults() -> None:
    request = chat()
    assert request.stop_strings == ()
    assert request.skips_special_tokens
    assert request.adds_generation_prompt
    assert not request.adds_special_tokens
    assert completion().adds_special_tokens
    assert not request.reports_usage
    assert not request.reports_usage_continuously


def test_stop_is_a_string_or_several() -> None:
    assert chat(stop="a").stop_strings == ("a",)
    assert chat(stop=["a", "b"]).stop_strings == ("a", "b")
    assert chat(stop=[]).stop_strings == ()


@pytest.mark.parametrize(
    ("options", "at_the_end", "always"),
    [
        (None, False, False),
        ({}, False, False),
        ({"include_usage": True}, True, False),
        ({"include_usage": None}, False, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
        # The default of include_usage was true in older versions of vLLM.
        ({"continuous_usage_stats": True}, True, True),
        ({"include_usage": False, "continuous_usage_stats": True}, False, True),
    ],
)
def test_a_stream_reports_usage_on_request(
    options: dict[str, Any] | None, at_the_end: bool, always: bool
) -> None:
    request = chat(stream=True, stream_options=options)
    assert request.reports_usage is at_the_end
    assert request.reports_usage_continuously is always


def test_a_continued_message_opens_no_new_turn() -> None:
    assert not chat(continue_final_message=True).adds_generation_prompt
    assert not chat(add_generation_prompt=False).adds_generation_prompt


def test_template_arguments_are_any_small_object() -> None:
    kwargs = {"enable_thinking": False, "deep": {"list": [1, None, "a"]}}
    assert chat(chat_template_kwargs=kwargs).chat_template_kwargs == kwargs
    assert chat(chat_template_kwargs={}).chat_template_kwargs == {}
    assert chat(chat_template_kwargs=None).chat_template_kwargs is None


def nest(depth: int) -> object:
    value: object = 1
    for _ in range(depth // 2):
        value = {"a": [value]}
    return value


FREE_FORMS: dict[str, Callable[[int], object]] = {
    "chat_template_kwargs": nest,
    "tools": lambda depth: [{"function": {"name": "f", "a": nest(depth - 3)}}],
    "logits_processors": lambda depth: {"a": {"b": nest(depth - 2)}},
}


@pytest.mark.parametrize("name", FREE_FORMS)
@pytest.mark.parametrize("depth", [67, 901])
def test_a_field_that_is_nested_too_deeply_is_named(name: str, depth: int) -> None:
    with pytest.raises(InvalidParameter, match="at most 64 lists and obj") as caught:
        chat(**{name: FREE_FORMS[name](depth)})
    assert caught.value.param == name


@pytest.mark.parametrize("name", FREE_FORMS)
def test_a_field_with_less_nesting_is_accepted(name: str) -> None:
    assert getattr(chat(**{name: FREE_FORMS[name](64)}), name)


def test_template_arguments_may_not_be_nested_without_end() -> None:
    body = b'{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"a":'
    with pytest.raises(InvalidParameter):
        decode_chat(body + b"[" * 900 + b"\xff" + b"]" * 900 + b"}}")


def test_messages_become_mappings() -> None:
    request = chat(
        messages=[
            {"role": "system", "content": "s"},
            {
                "role": "user",
                "name": "ann",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "text", "text": "b"},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "tool_calls": [
                    {"id": "t", "function": {"name": "f", "arguments": '{"x":1}'}}
                ],
            },
            {"role": "tool", "content": "42", "tool_call_id": "t"},
        ]
    )
    assert list(MessageMappings(request.messages)) == [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "name": "ann",
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "t",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"x":1}'},
                }
            ],
        },
        {"role": "tool", "content": "42", "tool_call_id": "t"},
    ]


def test_an_answer_can_be_sent_back_as_the_client_library_dumps_it() -> None:
    dumped = {
        "role": "assistant",
        "content": "hello",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert list(MessageMappings(chat(messages=[dumped]).messages)) == [
        {"role": "assistant", "content": "hello"}
    ]


def test_tokenize_takes_a_prompt_or_messages() -> None:
    prompt = TOKENIZE_BODY.decode(b'{"prompt":""}')
    assert prompt.adds_special_tokens
    messages = TOKENIZE_BODY.decode(b'{"messages":[{"role":"user","content":"a"}]}')
    assert not messages.adds_special_tokens
    assert messages.adds_generation_prompt


def test_detokenize_takes_no_tokens() -> None:
    assert DETOKENIZE_BODY.decode(b'{"tokens":[]}').tokens == ()


def test_a_new_struct_needs_nothing_but_a_decoder() -> None:
    class NewRequest(ModelRequest, frozen=True, kw_only=True):
        text: str

    decoder = BodyDecoder(NewRequest)
    assert decoder.decode(b'{"text": "a"}') == NewRequest(text="a")
    with pytest.raises(InvalidParameter) as caught:
        decoder.decode(b'{"model": "a"}')
    assert caught.value.param == "text"


def test_few_unknown_fields_are_listed_and_shortly() -> None:
    many = encode("completion", **{f"{i:03}" + "x" * 99: i for i in range(99)})
    names = COMPLETION_BODY.list_unknown_fields(many)
    assert len(names) == 16
    assert max(map(len, names)) == 64


def test_unknown_fields_whose_names_are_no_text_are_not_listed() -> None:
    body = b'{"prompt":"a","\xff":1}'
    assert COMPLETION_BODY.list_unknown_fields(body) == ()


# Fields that may be megabytes long.


def parts(*content: dict[str, Any]) -> list[dict[str, object]]:
    (message,) = MessageMappings(
        chat(messages=[{"role": "user", "content": list(content)}]).messages
    )
    found = message["content"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("url", ["data:image/png;base64,iVBO", {"url": "data:,x"}])
def test_an_images_url_stays_bytes_of_the_body(url: Any) -> None:
    (part,) = parts({"type": "image_url", "image_url": url})
    expected = url if isinstance(url, str) else url["url"]
    assert part == {
        "type": "image_url",
        "image_url": {"url": memoryview(expected.encode())},
    }


@pytest.mark.parametrize(
    ("detail", "is_taken"),
    [(None, True), ("auto", True), ("high", True), ("low", False), ("x", False)],
)
def test_an_image_cannot_be_seen_in_little_detail(
    detail: str | None, is_taken: bool
) -> None:
    image = {"url": "data:,", "detail": detail}
    part = {"type": "image_url", "image_url": image}
    messages = MessageMappings(
        chat(messages=[{"role": "user", "content": [part]}]).messages
    )
    if is_taken:
        assert messages[0]["content"]
        return
    with pytest.raises(NotSupported) as caught:
        messages[0]
    assert caught.value.param == "messages[0].content[0].image_url.detail"


def test_embeddings_in_a_chat_stay_bytes_of_the_body() -> None:
    text, embeds = parts(
        {"type": "text", "text": "a"},
        {"type": "prompt_embeds", "prompt_embeds": "QUJD"},
    )
    assert text == {"type": "text", "text": "a"}
    assert embeds["prompt_embeds"] == b"QUJD"


def test_escapes_in_fields_that_stay_bytes_are_resolved() -> None:
    """PHP writes / as \\/, and base64 contains slashes."""
    body = b'{"prompt_embeds":"AA\\/BB\\u002f="}'
    (payload,) = decode_completion(body).prompt_embeds or ()
    assert payload == b"AA/BB/="


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url"}, "image_url"),
        ({"type": "image_url", "image_url": {}}, "image_url.url"),
        ({"type": "image_url", "image_url": 7}, "image_url"),
        ({"type": "image_url", "image_url": {"url": 7}}, "image_url.url"),
        ({"type": "prompt_embeds"}, "prompt_embeds"),
        ({"type": "prompt_embeds", "prompt_embeds": [1]}, "prompt_embeds"),
        ({"type": "text"}, "text"),
    ],
)
def test_a_wrong_part_is_named(part: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        parts(part)
    assert caught.value.param == f"messages[0].content[0].{param}"


@pytest.mark.parametrize(
    ("embeds", "expected"),
    [
        ('"QUJD"', (b"QUJD",)),
        ('["QUJD","RA=="]', (b"QUJD", b"RA==")),
        ("null", None),
    ],
)
def test_embeddings_are_one_string_or_several(
    embeds: str, expected: tuple[bytes, ...] | None
) -> None:
    request = decode_completion(f'{{"prompt":"a","prompt_embeds":{embeds}}}'.encode())
    assert request.prompt_embeds == expected
    assert request.prompts == ("a",)


@pytest.mark.parametrize("embeds", ["[]", "7", "[7]", "{}", '["a",null]'])
def test_embeddings_that_are_no_strings_are_refused(embeds: str) -> None:
    with pytest.raises(InvalidParameter, match=r"^prompt_embeds"):
        decode_completion(f'{{"prompt_embeds":{embeds}}}'.encode())


LONG = 40_000


def test_a_long_prompt_is_read_as_a_short_one_would_be() -> None:
    for indent in (None, 1):
        for prompt in (
            list(range(LONG)),
            [list(range(LONG)), [1, 2]],
            ["word " * LONG, "é\u2028" * LONG],
            "word " * LONG,
            ["x", "y" * LONG * 3],
        ):
            body = json.dumps({"prompt": prompt}, indent=indent).encode()
            request = decode_completion(body)
            assert request.prompt == msgspec.convert(prompt, CompletionPrompt), indent


def test_an_error_in_a_long_prompt_is_named() -> None:
    for prompt, param in (
        ([*range(LONG), -1], "prompt"),
        ([*range(LONG), "x"], "prompt"),
        ([*range(LONG), [1]], "prompt"),
        ([*range(LONG), 1.5], "prompt"),
        (["x" * 3 * LONG, 1], "prompt"),
        ([[*range(LONG), None], [1]], "prompt[0]"),
        ([[1], [*range(LONG), [2]]], "prompt[1]"),
        ([[1], "x" * 3 * LONG], "prompt"),
        ([[1]] * 33_000, "prompt"),
        ([""] * 33_000, "prompt"),
        (["", *["x" * LONG] * 5], "prompt[0]"),
        ({"x": "y" * 3 * LONG}, "prompt"),
    ):
        with pytest.raises(InvalidParameter) as caught:
            completion(prompt=prompt)
        assert (caught.value.param or "").startswith(param), str(prompt)[:24]


def test_too_many_ids_are_refused_before_they_are_built() -> None:
    body = json.dumps({"prompt": [1] * LONG}).encode()
    with pytest.raises(ContextLengthExceeded) as caught:
        decode_completion(body, 100)
    assert (caught.value.num_tokens, caught.value.limit) == (LONG, 100)
    # A prompt that will be cut is not too long.
    cut = json.dumps({"prompt": [1] * LONG, "truncate_prompt_tokens": 5}).encode()
    assert decode_completion(cut, 100).prompts == ((1,) * LONG,)


@given(st.lists(st.integers(0, 2**31 - 1), max_size=30), st.integers(1, 40))
def test_ids_are_the_same_however_they_are_cut(ids: list[int], size: int) -> None:
    raw = msgspec.Raw(json.dumps(ids).encode())
    pieces = [decode_ids("prompt", raw, 1000, piece_bytes=n) for n in (size, 1000)]
    assert pieces == [tuple(ids)] * 2


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_the_form_of_an_answer_is_read_once(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema may have 262,144 characters."""
    read: list[object] = []

    def find(*fields: object) -> Any:
        read.append(fields)
        return StructuredOutput(kind="regex", value="a")

    monkeypatch.setattr("trioserve.api.shared.requests.find_structure", find)
    body = {**MINIMAL[kind], "guided_regex": "a"}
    request = BODIES[kind].decode(json.dumps(body).encode())
    params = request.text_params
    forget(request, **dict.fromkeys(MINIMAL[kind]))
    assert request.text_params is params
    assert not any(getattr(request, name) for name in MINIMAL[kind])
    assert len(read) == 1
