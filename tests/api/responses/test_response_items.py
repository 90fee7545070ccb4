"""The items of the Responses API, and their messages for the model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trioserve.api.responses.body import RESPONSE_BODY
from trioserve.api.responses.items import decode_items, encode_items
from trioserve.api.responses.messages import to_messages
from trioserve.api.responses.request import ResponseRequest, to_chat
from trioserve.api.shared.message_mappings import MessageMappings
from trioserve.errors import RequestError
from trioserve.types.structured import StructuredOutput

DATA_URL = "data:image/png;base64," + "QUJD" * 400_000

USER = {"role": "user", "content": "Hello"}
CALL = {
    "type": "function_call",
    "call_id": "call_1",
    "name": "look",
    "arguments": '{"at": "it"}',
}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "a dog"}
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}
ANSWER = {
    "type": "message",
    "id": "msg_1",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "It is a dog.", "annotations": []}],
}


def decode(**fields: Any) -> ResponseRequest:
    body = {"input": "Hello"} | fields
    return RESPONSE_BODY.decode(json.dumps(body).encode())


def read(*items: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    """Return the messages that the renderer reads."""
    messages, _ = to_messages(decode(input=items).items, instructions)
    return [*MessageMappings(messages)]


def test_a_text_is_a_message_of_the_user() -> None:
    messages, sources = to_messages(decode().items, "Be brief.")
    assert [*MessageMappings(messages)] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]
    assert sources == (-1, 0)


def test_the_items_of_one_answer_become_one_message() -> None:
    second = CALL | {"call_id": "call_2"}
    assert read(USER, REASONING, ANSWER, CALL, second, RESULT, USER) == [
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "content": "It is a dog.",
            "reasoning": "Hm.",
            "tool_calls": [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"at": "it"}'},
                }
                for call_id in ("call_1", "call_2")
            ],
        },
        {"role": "tool", "content": "a dog", "tool_call_id": "call_1"},
        {"role": "user", "content": "Hello"},
    ]


def test_answers_that_follow_each_other_stay_apart() -> None:
    roles = [message["role"] for message in read(ANSWER, ANSWER, CALL, REASONING, CALL)]
    assert roles == ["assistant"] * 3
    contents = [m["content"] for m in read(ANSWER, ANSWER, CALL, REASONING, CALL)]
    assert contents == ["It is a dog.", "It is a dog.", None]


def test_parts_become_parts_of_a_chat() -> None:
    content = [
        {"type": "input_text", "text": "See:"},
        {"type": "input_image", "image_url": "http://x/y.png", "detail": "auto"},
    ]
    [message] = read({"role": "user", "content": content})
    text, image = message["content"]
    assert text == {"type": "text", "text": "See:"}
    assert bytes(image["image_url"]["url"]) == b"http://x/y.png"


def test_a_long_image_is_not_decoded_and_survives_the_store() -> None:
    content = [{"type": "input_image", "image_url": DATA_URL, "detail": "high"}]
    items = decode(input=[{"role": "user", "content": content}]).items
    stored = encode_items(items, lambda kind: f"{kind}_1")
    assert json.loads(stored) == [
        {
            "id": "message_1",
            "type": "message",
            "role": "user",
            "content": content,
            "status": "completed",
        }
    ]
    messages, _ = to_messages(decode_items(stored), None)
    [message] = MessageMappings(messages)
    assert bytes(message["content"][0]["image_url"]["url"]).decode() == DATA_URL  # type: ignore[index]


def test_a_call_that_is_incomplete_is_left_out_with_its_result() -> None:
    cut = {"call_id": "call_0", "arguments": '{"at": "i', "status": "incomplete"}
    result = RESULT | {"call_id": "call_0"}
    assert read(USER, ANSWER, CALL | cut, CALL, result, RESULT) == read(
        USER, ANSWER, CALL, RESULT
    )
    # The turn stays, so that the turns alternate.
    [first, second, third] = read(USER, CALL | cut, USER)
    assert second == {"role": "assistant", "content": None}
    stored = encode_items(decode(input=[USER, CALL | cut]).items, lambda kind: "fc_1")
    assert json.loads(stored)[1]["status"] == "incomplete"
    messages, _ = to_messages(decode_items(stored), None)
    assert [*MessageMappings(messages)] == [first, second]


def test_reasoning_that_is_a_string_survives_the_store() -> None:
    items = decode(input=[REASONING | {"content": "Hm."}]).items
    stored = encode_items(items, lambda kind: f"{kind}_1")
    assert json.loads(stored)[0]["content"] == REASONING["content"]
    assert to_messages(decode_items(stored), None) == to_messages(items, None)


def test_the_stored_form_reads_as_the_same_messages() -> None:
    items = decode(input=[USER, REASONING, ANSWER, CALL, RESULT]).items
    stored = encode_items(items, lambda kind: f"{kind}_1")
    assert to_messages(decode_items(stored), None) == to_messages(items, None)
    kinds = [(item["id"], item["type"]) for item in json.loads(stored)]
    assert kinds == [
        ("message_1", "message"),
        ("rs_1", "reasoning"),
        ("msg_1", "message"),
        ("function_call_1", "function_call"),
        ("function_call_output_1", "function_call_output"),
    ]


def test_wrong_fields_are_named() -> None:
    for fields, param in (
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"content": "a"}]}, "input[0].type"),
        ({"input": [USER, {"role": "tool", "content": "a"}]}, "input[1].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "function_call"}]}, "input[0].call_id"),
        ({"input": [CALL | {"arguments": None}]}, "input[0].arguments"),
        ({"input": [RESULT | {"output": None}]}, "input[0].output"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"background": True, "store": False}, "background"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"truncation": "left"}, "truncation"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        (
            {"tools": [{"type": "function", "name": "a", "namespace": 5}]},
            "tools[0].namespace",
        ),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
        ({"tools": [{"type": "namespace", "name": "a"}]}, "tools[0].tools"),
        (
            {"tools": [{"type": "namespace", "name": "a", "tools": [{}]}]},
            "tools[0].tools[0].type",
        ),
        (
            {
                "tools": [
                    {"type": "namespace", "name": "a", "tools": [{"type": "function"}]}
                ]
            },
            "tools[0].tools[0].name",
        ),
        # Not supported.
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0].type",
        ),
        (
            {
                "input": [
                    {"type": "reasoning", "summary": [{"type": "input_image"}]},
                    {"role": "user", "content": "x"},
                ]
            },
            "input[0].summary[0].type",
        ),
        ({"max_tokens": 5}, "max_tokens"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        (
            {"input": [{"type": "reasoning", "encrypted_content": "x"}]},
            "input[0].encrypted_content",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "a"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "name": "a"}]}, "tools[0].type"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
    ):
        with pytest.raises(RequestError) as caught:
            decode(**fields)
        assert caught.value.param == param, fields


def test_fields_that_clients_send_without_a_wish_are_taken() -> None:
    decode(
        include=["reasoning.encrypted_content", "message.input_image.image_url"],
        reasoning={"effort": "medium", "summary": "auto"},
        text={"format": {"type": "text"}, "verbosity": "medium"},
        truncation="disabled",
        stream_options={"include_obfuscation": False},
        service_tier="auto",
        prompt_cache_key="a",
        max_tool_calls=3,
        previous_response_id=None,
        tools=[],
    )


def test_the_form_of_the_text_is_that_of_a_chat_and_names_its_own_field() -> None:
    wanted = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
    request = decode(text={"format": wanted})
    chat = to_chat(request, to_messages(request.items, None)[0])
    assert chat.structure == StructuredOutput(
        kind="json", value='{"type": "object"}', param="text.format"
    )
    request = decode(text={"format": {"type": "json_object"}})
    chat = to_chat(request, to_messages(request.items, None)[0])
    assert chat.structure == StructuredOutput(kind="json_object", param="text.format")


def test_the_fields_of_a_response_become_those_of_a_chat() -> None:
    tool = {"name": "look", "parameters": {"type": "object"}, "strict": True}
    request = decode(
        max_output_tokens=5,
        temperature=0.5,
        seed=7,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        truncation="auto",
        tools=[{"type": "function", **tool}],
        tool_choice="none",
    )
    chat = to_chat(request, to_messages(request.items, None)[0])
    assert chat.max_completion_tokens == 5
    assert (chat.temperature, chat.seed) == (0.5, 7)
    assert (chat.logprobs, chat.top_logprobs) == (True, 2)
    assert chat.truncate_prompt_tokens == -1
    assert chat.tools == ({"type": "function", "function": tool},)
    assert chat.shown_tools == ()
