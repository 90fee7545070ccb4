"""Tools, their choice and templates of requests: what the model sees and must call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trioserve.api.anthropic.requests import MessagesRequest
from trioserve.api.chat.request import ChatRequest
from trioserve.api.responses.messages import naming_fields, to_messages
from trioserve.api.responses.request import ResponseRequest, to_chat
from trioserve.api.shared.message_mappings import MessageMappings, to_chat_options
from trioserve.api.tokens.requests import TokenizeRequest
from trioserve.errors import InvalidParameter, NotSupported, RequestError
from trioserve.render import TURN_CHARACTERS, ChatOptions, count_characters

from ..decoders import decode_body

MESSAGES = [{"role": "user", "content": "hi"}]


def decode(request_type: type[Any], fields: dict[str, Any]) -> Any:
    return decode_body(request_type, json.dumps(fields).encode())


def chat(**fields: Any) -> ChatRequest:
    return decode(ChatRequest, {"messages": MESSAGES} | fields)


with_messages = pytest.mark.parametrize("request_type", [ChatRequest, TokenizeRequest])


def test_tools_and_templates_reach_the_renderer_as_they_are() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    options = to_chat_options(
        chat(tools=[tool], chat_template="{{ 1 }}", chat_template_kwargs={"a": [1]})
    )
    assert options == ChatOptions(
        tools=(tool,), chat_template="{{ 1 }}", variables={"a": [1]}
    )


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


UNKNOWN_TOOLS: list[Any] = [
    {"type": "custom", "custom": {"name": "patch"}},
    {"type": "web_search_20250305", "name": "web_search"},
    {"type": ["function"]},
]
OWN_TOOLS: dict[type[Any], dict[str, Any]] = {
    ChatRequest: TOOL,
    TokenizeRequest: TOOL,
    ResponseRequest: {"type": "function", "name": "f", "parameters": {}},
    MessagesRequest: {"name": "f", "input_schema": {}},
}


@pytest.mark.parametrize("request_type", OWN_TOOLS)
def test_unknown_tools_are_left_out_where_the_server_ignores_them(
    request_type: type[Any],
) -> None:
    def decode_tools(*tools: Any) -> Any:
        fields = {"messages": MESSAGES, "max_tokens": 1, "tools": tools}
        if request_type is ResponseRequest:
            fields = {"input": "hi", "tools": tools}
        return decode_body(
            request_type, json.dumps(fields).encode(), ignores_unknown_tools=True
        )

    own = OWN_TOOLS[request_type]
    # Tools of the type custom are the client's own in one of the APIs.
    unknown = UNKNOWN_TOOLS[1:2]
    assert decode_tools(*unknown, own, *unknown).tools == decode_tools(own).tools
    assert decode_tools(*unknown).tools is None
    with pytest.raises(InvalidParameter) as caught:
        decode_tools(*unknown, own | {"name": 5, "function": 5})
    assert (caught.value.param or "").startswith("tools[1].")


@pytest.mark.parametrize(
    ("tool", "described"),
    [
        (UNKNOWN_TOOLS[0], "'custom' ('patch')"),
        (UNKNOWN_TOOLS[1], "'web_search_20250305' ('web_search')"),
        (UNKNOWN_TOOLS[2], "a list"),
        ({"type": "x" * 99, "name": ["y"]}, "x" * 64 + "...' (a list)"),
    ],
)
def test_an_unknown_tool_is_named(tool: Any, described: str) -> None:
    with pytest.raises(NotSupported) as caught:
        chat(tools=[TOOL, tool])
    assert caught.value.param == "tools[1].type"
    assert f"{described} is not run here" in str(caught.value)


def allow(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


OTHER_TOOL = {"type": "function", "function": {"name": "g"}}


def test_a_call_may_be_forced() -> None:
    for choice, forced in (
        (None, set()),
        ("auto", set()),
        ("none", set()),
        ("required", {"f", "g"}),
        ({"type": "function", "function": {"name": "g"}}, {"g"}),
        ({"function": {"name": "f"}}, {"f"}),
        (allow("required", "f", "g"), {"f", "g"}),
        (allow("required", "g"), {"g"}),
        (allow("auto", "g"), set()),
    ):
        request = chat(tools=[TOOL, OTHER_TOOL], tool_choice=choice)
        assert request.text_params.forced_tools == forced, choice


@with_messages
def test_tools_that_must_not_be_called_are_not_shown(request_type: type[Any]) -> None:
    for choice, shown in (
        (None, (TOOL, OTHER_TOOL)),
        ("auto", (TOOL, OTHER_TOOL)),
        ("none", ()),
        (allow("auto", "g"), (OTHER_TOOL,)),
        (allow("auto", "g", "f"), (TOOL, OTHER_TOOL)),
        # A grammar keeps the model to the allowed ones.
        (allow("required", "g"), (TOOL, OTHER_TOOL)),
    ):
        tools = [TOOL, OTHER_TOOL]
        fields = {"messages": MESSAGES, "tools": tools, "tool_choice": choice}
        assert to_chat_options(decode(request_type, fields)).tools == shown, choice


def test_allowed_tools_of_a_response_are_those_of_a_chat() -> None:
    def convert(name: str) -> ChatRequest:
        names = [{"type": "function", "name": name}]
        request = decode(
            ResponseRequest,
            {
                "input": "hi",
                "tools": [{"type": "function", "name": each} for each in "fg"],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": names,
                },
            },
        )
        messages, sources = to_messages(request.items, None)
        with naming_fields(sources, 0):
            return to_chat(request, messages)

    assert convert("g").text_params.forced_tools == {"g"}
    with pytest.raises(InvalidParameter) as caught:
        convert("h")
    assert caught.value.param == "tool_choice.tools[0].name"


NAMES = "tool_choice.allowed_tools"


def test_a_wrong_choice_of_tools_is_named() -> None:
    for choice, param in (
        ("any", "tool_choice"),
        (7, "tool_choice"),
        ({"type": "function"}, "tool_choice.function"),
        ({"type": "custom"}, "tool_choice.type"),
        ({"type": {"function": 1}}, "tool_choice.type"),
        ({"function": {"name": "h"}}, "tool_choice.function.name"),
        ({"type": "allowed_tools"}, NAMES),
        (allow("any"), f"{NAMES}.mode"),
        (allow("auto"), f"{NAMES}.tools"),
        (allow("auto", "h"), f"{NAMES}.tools[0].function.name"),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "mcp"}]},
            },
            f"{NAMES}.tools[0].type",
        ),
    ):
        with pytest.raises(RequestError) as caught:
            chat(tools=[TOOL], tool_choice=choice)
        assert caught.value.param == param, choice


def test_a_choice_needs_tools() -> None:
    with pytest.raises(RequestError, match="^tool_choice: is only taken with tools"):
        chat(tool_choice="required")


@pytest.mark.parametrize(
    ("fields", "is_allowed"),
    [
        ({"parallel_tool_calls": True}, True),
        ({"parallel_tool_calls": None}, True),
        ({"parallel_tool_calls": False}, False),
        ({"parallel_tool_calls": False, "tool_choice": "none"}, False),
        ({"tool_choice": {"function": {"name": "f"}}}, False),
    ],
)
def test_parallel_tool_calls_may_be_allowed_or_forbidden(
    fields: dict[str, Any], is_allowed: bool
) -> None:
    request = chat(tools=[TOOL], **fields)
    assert request.text_params.parallel_tool_calls is is_allowed


@with_messages
def test_a_tool_that_is_no_function_is_named(request_type: type[Any]) -> None:
    for tool, param in (
        ({"type": "custom", "custom": {"name": "f"}}, "tools[1].type"),
        ({"type": "web_search"}, "tools[1].type"),
        ({"type": "function"}, "tools[1].function"),
        ({"name": "f", "input_schema": {}}, "tools[1].function"),
        ({"type": "function", "function": {"name": 7}}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": ""}}, "tools[1].function.name"),
    ):
        with pytest.raises(RequestError) as caught:
            decode(request_type, {"messages": MESSAGES, "tools": [TOOL, tool]})
        assert caught.value.param == param, tool


WRONG_TYPES = pytest.mark.parametrize(
    ("field", "value"),
    [
        ("parameters", "x"),
        ("parameters", []),
        ("parameters", True),
        ("description", 5),
        ("strict", "x"),
        ("strict", 1),
    ],
)


@WRONG_TYPES
@with_messages
def test_a_wrong_type_in_a_function_is_named(
    request_type: type[Any], field: str, value: object
) -> None:
    for choice in ("auto", "required"):
        tool = {"type": "function", "function": {"name": "g", field: value}}
        fields = {"messages": MESSAGES, "tools": [TOOL, tool], "tool_choice": choice}
        with pytest.raises(InvalidParameter) as caught:
            decode(request_type, fields)
        assert caught.value.param == f"tools[1].function.{field}", choice


@WRONG_TYPES
def test_a_wrong_type_in_a_function_of_a_response_is_named(
    field: str, value: object
) -> None:
    tool = {"type": "function", "name": "f", field: value}
    with pytest.raises(InvalidParameter) as caught:
        decode(ResponseRequest, {"input": "hi", "tools": [tool]})
    assert caught.value.param == f"tools[0].{field}"


def test_null_in_a_function_is_the_same_as_no_field() -> None:
    function = {"name": "f", "description": None, "parameters": None, "strict": None}
    bare = {"type": "function", "function": {"name": "f"}}
    tools = [{"type": "function", "function": function}]
    for request_type in (ChatRequest, TokenizeRequest):
        request = decode(request_type, {"messages": MESSAGES, "tools": tools})
        assert request.tools == (bare,)
    flat = {"type": "function"} | function
    response = decode(ResponseRequest, {"input": "hi", "tools": [flat]})
    messages, _ = to_messages(response.items, None)
    assert to_chat(response, messages).tools == (bare,)
    # The answer repeats the tools as they were sent.
    assert response.tools == (flat,)


@pytest.mark.parametrize(
    "fields",
    [
        {"add_generation_prompt": True},
        {"continue_final_message": True},
        {"chat_template": "x"},
        {"chat_template_kwargs": {"a": 1}},
        {"tools": [TOOL]},
    ],
)
def test_a_prompt_takes_nothing_that_is_for_messages(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match="only taken with messages") as caught:
        decode(TokenizeRequest, {"prompt": "hi"} | fields)
    assert caught.value.param == next(iter(fields))


@with_messages
def test_wrong_tools_and_templates_are_named(request_type: type[Any]) -> None:
    for fields, param in (
        ({"tools": [7]}, "tools[0]"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"x": "y" * 300_000}]}, "tools"),
        ({"chat_template": "x" * 100_000}, "chat_template"),
        ({"chat_template": 7}, "chat_template"),
    ):
        with pytest.raises(InvalidParameter) as caught:
            decode(request_type, {"messages": MESSAGES} | fields)
        assert caught.value.param == param, fields


def test_the_length_of_messages_counts_text_only() -> None:
    request = chat(
        messages=[
            {"role": "user", "content": "Hello"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "ab"},
                    {"type": "image_url", "image_url": {"url": "data:" + "x" * 999}},
                ],
            },
            {"role": "assistant", "content": None, "reasoning": "abc"},
        ]
    )
    messages = MessageMappings(request.messages)
    assert messages.num_characters == 3 * TURN_CHARACTERS + 5 + 2 + 3
    assert count_characters(messages) == messages.num_characters
