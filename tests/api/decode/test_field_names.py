"""Fields of other servers and misspelt fields are refused; others are ignored."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from trioserve.api.anthropic.requests import MessagesRequest
from trioserve.api.chat.request import ChatRequest
from trioserve.api.completions.request import CompletionRequest
from trioserve.api.decode.field_names import MAX_UNKNOWN_FIELDS, FieldNames
from trioserve.api.decode.fields import ModelRequest
from trioserve.api.pooling.requests import (
    ClassificationRequest,
    EmbeddingRequest,
    RerankRequest,
)
from trioserve.api.responses.request import ResponseRequest, to_chat
from trioserve.api.shared.messages import Message
from trioserve.errors import InvalidParameter, NotSupported, RequestError
from trioserve.types.structured import StructuredOutput

from ..decoders import MINIMAL, decode_body, find_decoder

TYPES = (
    ChatRequest,
    CompletionRequest,
    ResponseRequest,
    MessagesRequest,
    EmbeddingRequest,
    ClassificationRequest,
    RerankRequest,
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def decode(request_type: type[ModelRequest], **fields: Any) -> Any:
    body = json.dumps(MINIMAL[request_type.__name__] | fields).encode()
    return decode_body(request_type, body)


def refuse(request_type: type[ModelRequest], **fields: Any) -> str:
    with pytest.raises(RequestError) as caught:
        decode(request_type, **fields)
    assert caught.value.status == 400
    assert str(caught.value).startswith(caught.value.param or "?")
    return str(caught.value)


def test_a_misspelt_field_is_refused_with_the_name_that_is_meant() -> None:
    for request_type, name, value, message in (
        (ChatRequest, "temprature", 1, "is temperature meant?"),
        (ChatRequest, "temperatur", 1, "is temperature meant?"),
        (ChatRequest, "tempearture", 1, "is temperature meant?"),
        (ChatRequest, "temperaturee", 1, "is temperature meant?"),
        (ChatRequest, "maxTokens", 5, "is max_tokens meant?"),
        (ChatRequest, "top-p", 0.5, "is top_p meant?"),
        (ChatRequest, "top_b", 5, "is top_k or top_p meant?"),
        (ResponseRequest, "max_output_token", 5, "is max_output_tokens meant?"),
        (MessagesRequest, "stop_sequence", ["x"], "is stop_sequences meant?"),
        (EmbeddingRequest, "inputs", "x", "is input meant?"),
    ):
        expected = f"{name}: there is no such field; {message}"
        assert refuse(request_type, **{name: value}) == expected
        # Null is the same as no field.
        assert decode(request_type, **{name: None}) == decode(request_type)


@pytest.mark.parametrize(
    ("request_type", "fields", "param"),
    [
        (
            ChatRequest,
            {"stream": True, "stream_options": {"include_usag": True}},
            "stream_options.include_usag",
        ),
        (
            ChatRequest,
            {"response_format": {"type": "json_schema", "json_schema": {"schma": {}}}},
            "response_format.json_schema.schma",
        ),
        (ResponseRequest, {"reasoning": {"efort": "low"}}, "reasoning.efort"),
        (ResponseRequest, {"text": {"format": {"strct": 1}}}, "text.format.strct"),
        (ResponseRequest, {"reasoning": {"max_tokens": 5}}, "reasoning.max_tokens"),
        (
            MessagesRequest,
            {"thinking": {"type": "adaptive", "dsplay": "omitted"}},
            "thinking.dsplay",
        ),
    ],
)
def test_fields_of_objects_in_a_body_are_looked_at_too(
    request_type: type[ModelRequest], fields: dict[str, Any], param: str
) -> None:
    assert refuse(request_type, **fields).startswith(param)


def test_other_unknown_fields_are_ignored() -> None:
    for name in (
        "of_the_future",
        "x",
        "nn",
        "stopping",
        "models",
        "mode",
        "temper",
        "t" * 999,
    ):
        assert decode(ChatRequest, **{name: {"a": [1]}}) == decode(ChatRequest)


def test_no_known_name_is_taken_for_a_mistake_by_its_own_endpoint() -> None:
    for request_type in TYPES:
        decoder = find_decoder(request_type)
        for name in (*decoder.refused, *decoder.foreign, *decoder.ignored):
            assert decode(request_type, **{name: None}) == decode(request_type)


def test_a_field_of_another_server_is_refused_with_advice() -> None:
    for name, value, message in (
        ("repeat_penalty", 1.1, "send repetition_penalty"),
        ("mirostat", 2, "it samples by temperature, top_k, top_p and min_p alone"),
        ("grammar", "root ::= 'a'", "send guided_grammar, which takes Lark"),
        ("regex", "a+", "send guided_regex"),
        ("n_predict", 5, "send max_tokens"),
        (
            "enable_thinking",
            False,
            "send reasoning_effort none, or chat_template_kwargs",
        ),
        ("system", "Be kind.", "send a message of the role system"),
    ):
        expected = f"{name} is not supported by this server: {message}"
        assert refuse(ChatRequest, **{name: value}) == expected


def test_a_foreign_field_is_taken_with_a_neutral_value_alone() -> None:
    for request_type in TYPES:
        decoder, fields = find_decoder(request_type), request_type.__struct_fields__
        for name, (advice, neutral) in decoder.foreign.items():
            assert name not in fields, request_type
            assert name not in decoder.refused, request_type
            for value in (None, *neutral):
                assert decode(request_type, **{name: value}) == decode(request_type)
            with pytest.raises(NotSupported) as caught:
                decode(request_type, **{name: "another value"})
            assert caught.value.param == name, request_type
            assert advice in str(caught.value), request_type
            # Advised fields exist; their values are left out.
            for advised in re.findall(r"(?:send|,|or) ([a-z]+(?:_[a-z]+)+)", advice):
                assert advised in fields, request_type
            if found := re.match(r"send ([a-z_]+)(?:\.[a-z_]+)?$", advice):
                assert found[1] in fields, request_type


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            "response_format.schema",
        ),
        (
            {"response_format": {"type": "json_object", "value": SCHEMA}},
            "response_format.value",
        ),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA}},
            "response_format.schema",
        ),
        (
            {"structured_outputs": {"json_object": True, "schema": SCHEMA}},
            "structured_outputs.schema",
        ),
    ],
)
def test_a_schema_in_another_place_holds(fields: dict[str, Any], param: str) -> None:
    expected = StructuredOutput(kind="json", value=json.dumps(SCHEMA), param=param)
    assert decode(ChatRequest, **fields).structure == expected


def test_a_schema_in_another_place_holds_for_responses() -> None:
    text = {"format": {"type": "json_object", "schema": SCHEMA}}
    request = decode(ResponseRequest, text=text)
    chat = to_chat(request, (Message(role="user", content="hi"),))
    assert chat.structure == StructuredOutput(
        kind="json", value=json.dumps(SCHEMA), param="text.format"
    )


@pytest.mark.parametrize(
    ("request_type", "fields", "message"),
    [
        (
            ChatRequest,
            {"response_format": {"type": "text", "schema": SCHEMA}},
            "response_format.schema: is for the type json_schema",
        ),
        (
            ChatRequest,
            {"response_format": {"type": "json_schema", "value": {"schema": SCHEMA}}},
            "response_format.value: send json_schema",
        ),
        (
            ChatRequest,
            {
                "response_format": {
                    "type": "json_schema",
                    "schema": SCHEMA,
                    "json_schema": {"schema": SCHEMA},
                }
            },
            "response_format.schema: cannot be combined with "
            "response_format.json_schema",
        ),
        (
            ChatRequest,
            {"response_format": {"type": "json", "value": SCHEMA}},
            "response_format.type: must be one of text, json_object, json_schema, "
            "structural_tag, not 'json'",
        ),
        (
            ChatRequest,
            {"structured_outputs": {"schema": SCHEMA}},
            "structured_outputs.schema: needs json_object; or send json",
        ),
        (
            ResponseRequest,
            {"text": {"format": {"type": "text", "schema": SCHEMA}}},
            "text.format.schema: is for the type json_schema",
        ),
        (
            ResponseRequest,
            {"text": {"format": {"type": "json_object", "value": SCHEMA}}},
            "text.format.value is not supported by this server: send schema",
        ),
    ],
)
def test_a_schema_that_would_not_hold_is_refused(
    request_type: type[ModelRequest], fields: dict[str, Any], message: str
) -> None:
    assert refuse(request_type, **fields) == message


def test_few_unknown_fields_are_looked_at() -> None:
    many = {f"unknown_{i}": i for i in range(MAX_UNKNOWN_FIELDS)}
    assert decode(ChatRequest, **many) == decode(ChatRequest)
    # The rest of the body, which is not JSON, is not read.
    body = json.dumps(many | {"one_more": 1}).encode()[:-1] + b", [[["
    with pytest.raises(InvalidParameter, match="at most 128 unknown fields"):
        decode_body(ChatRequest, body)


def test_a_value_is_not_decoded_to_find_the_names() -> None:
    names = FieldNames({"text"}, refused={"refused": ("", ())})
    # The decoder would refuse the text, which is not UTF-8.
    names.check(b'{"text": "\xff", "other": [[["\xff"]]], "refused": null}')
    with pytest.raises(NotSupported):
        names.check(msgspec.Raw(b'{"refused": {"a": 1}}'))
    with pytest.raises(InvalidParameter, match="is not valid JSON"):
        names.check(b'{"text": ')
    with pytest.raises(InvalidParameter, match="must be a JSON object"):
        names.check(b"[]")
