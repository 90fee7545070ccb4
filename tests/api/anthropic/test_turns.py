"""Conversations of Anthropic's API: their messages, and refusals."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest

from trioserve.api.anthropic.body import MESSAGES_BODY
from trioserve.api.anthropic.chat import explain_fields, to_chat_request
from trioserve.api.anthropic.requests import MessagesRequest
from trioserve.api.anthropic.turn_mappings import TurnMappings
from trioserve.api.anthropic.turns import BLOCK_TYPES, AnthropicTurn, Block
from trioserve.api.shared.generation import count_characters
from trioserve.errors import RequestError
from trioserve.render import TURN_CHARACTERS, Base64Image, RendererWorkers
from trioserve.render.text.chat import read_messages

decode = MESSAGES_BODY.decode

HELLO = {"role": "user", "content": "Hello"}
LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
LONG = base64.b64encode(b"abc" * 400_000).decode()


def body_of(*turns: object, **fields: object) -> bytes:
    body = {"model": "fake", "max_tokens": 9, "messages": turns or [HELLO], **fields}
    return json.dumps(body).encode()


def user(*blocks: object) -> dict[str, object]:
    return {"role": "user", "content": blocks}


def assistant(*blocks: object) -> dict[str, object]:
    return {"role": "assistant", "content": blocks}


def text(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def image(**source: object) -> dict[str, object]:
    return {"type": "image", "source": source}


def call(number: int, **input_: object) -> dict[str, object]:
    return {"type": "tool_use", "id": f"t{number}", "name": "look", "input": input_}


def result(number: int, content: object = "seen") -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": f"t{number}", "content": content}


def convert(body: bytes) -> list[Any]:
    request = decode(body)
    return list(TurnMappings(request.messages, request.system))


def refuse(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        request = decode(body)
        turns = TurnMappings(request.messages, request.system)
        with explain_fields(turns):
            to_chat_request(request, splits_reasoning=False)
            list(turns)
    # The message names the field, too.
    assert str(caught.value).startswith(caught.value.param or "?")
    return caught.value


def test_strings_and_blocks_of_text_become_the_same() -> None:
    [first] = convert(body_of(HELLO))
    [second] = convert(body_of(user(text("Hello"))))
    assert first == second == {"role": "user", "content": [text("Hello")]}


def test_the_system_prompt_comes_first() -> None:
    system = [{**text("Be kind."), "cache_control": {"type": "ephemeral"}}]
    for sent in ("Be kind.", system):
        first, _ = convert(body_of(HELLO, system=sent))
        assert first == {"role": "system", "content": [text("Be kind.")]}


def test_results_become_messages_of_their_own_in_the_same_order() -> None:
    messages = convert(
        body_of(
            HELLO,
            assistant(
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "xyz"},
                text("I look."),
                call(1, at="the sea", data="x"),
                call(2),
            ),
            user(result(1), result(2, [text("a"), text("b")]), text("And now?")),
        )
    )
    assert [message["role"] for message in messages] == [
        *("user", "assistant", "tool", "tool", "user")
    ]
    _, asked, first, second, last = messages
    assert asked["content"] == [text("I look.")]
    assert asked["reasoning"] == "Hm."
    function = {"name": "look", "arguments": {"at": "the sea", "data": "x"}}
    assert asked["tool_calls"][0] == {
        "id": "t1",
        "type": "function",
        "function": function,
    }
    assert first == {"role": "tool", "tool_call_id": "t1", "content": "seen"}
    assert second["content"] == [text("a"), text("b")]
    assert last["content"] == [text("And now?")]


def test_calls_alone_leave_no_content() -> None:
    _, asked, _ = convert(body_of(HELLO, assistant(call(1)), user(result(1, None))))
    assert asked["content"] is None


def test_successive_turns_of_a_role_become_one() -> None:
    messages = convert(body_of(HELLO, user(text("you")), assistant(text("Hi."))))
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[0]["content"] == [text("Hello"), text("you")]


def test_a_last_turn_of_the_assistant_is_continued() -> None:
    request = decode(body_of(HELLO, assistant(text("The"))))
    chat = to_chat_request(request, splits_reasoning=False)
    assert chat.continue_final_message and not chat.adds_generation_prompt
    chat = to_chat_request(decode(body_of(HELLO)), splits_reasoning=False)
    assert chat.adds_generation_prompt and not chat.continue_final_message


def test_tools_become_functions() -> None:
    tool = {**LOOK, "description": "Look around.", "type": "custom"}
    request = decode(body_of(tools=[tool], tool_choice={"type": "auto"}))
    chat = to_chat_request(request, splits_reasoning=False)
    function = {
        "name": "look",
        "description": "Look around.",
        "parameters": LOOK["input_schema"],
    }
    assert chat.shown_tools == ({"type": "function", "function": function},)
    request = decode(body_of(tools=[tool], tool_choice={"type": "none"}))
    assert to_chat_request(request, splits_reasoning=False).shown_tools == ()


@pytest.mark.parametrize("data", ["QUJD", LONG], ids=["short", "long"])
def test_images_stay_bytes_of_the_body(data: str) -> None:
    picture = image(type="base64", media_type="image/png", data=data)
    link = image(type="url", url=f"data:image/png;base64,{data}")
    seen = user(picture, link, text("?"))
    asked = assistant(call(1, data=data[:200_000]))
    messages = convert(body_of(seen, asked, user(result(1, [picture]))))
    first, second, last = messages[0]["content"]
    assert first["image_url"]["url"] == Base64Image(data=memoryview(data.encode()))
    assert second["image_url"]["url"] == f"data:image/png;base64,{data}".encode()
    assert last == text("?")
    arguments = messages[1]["tool_calls"][0]["function"]["arguments"]
    assert arguments == {"data": data[:200_000]}
    [part] = messages[2]["content"]
    assert bytes(part["image_url"]["url"].data) == data.encode()


def test_thinking_becomes_a_budget() -> None:
    for thinking, splits, budget, shows in (
        ({"type": "enabled", "budget_tokens": 1024}, True, 1024, True),
        ({"type": "adaptive"}, True, None, True),
        ({"type": "adaptive", "display": "omitted"}, False, None, False),
        ({"type": "disabled"}, True, 0, True),
        ({"type": "disabled"}, False, None, True),
        ({"type": "enabled", "budget_tokens": 1024}, False, None, True),
        (None, True, None, True),
    ):
        request = decode(body_of(thinking=thinking))
        chat = to_chat_request(request, splits_reasoning=splits)
        assert chat.thinking_token_budget == budget, (thinking, splits)
        assert chat.includes_reasoning == shows, (thinking, splits)
        # Without a parser, only the template can switch it off.
        is_switched = thinking == {"type": "disabled"} and not splits
        assert chat.reasoning_effort == ("none" if is_switched else None)


def test_an_effort_becomes_that_of_a_chat() -> None:
    request = decode(body_of(output_config={"effort": "low"}))
    assert to_chat_request(request, splits_reasoning=False).reasoning_effort == "low"


LARGE = [
    # The second call of the third message that the renderer reads.
    *(HELLO, assistant(text("a"), call(1)), user(result(1))),
    assistant(text("b"), call(2), call(3, text="x" * 300_000)),
    user(result(2), result(3)),
]
BMP = image(type="base64", media_type="image/bmp", data="QUJD")


def test_wrong_turns_are_refused_by_their_place() -> None:
    for turns, param in (
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([user({"type": "document"})], "messages[0].content[0].type"),
        ([user(call(1))], "messages[0].content[0].type"),
        ([user({"type": "text"})], "messages[0].content[0].text"),
        ([user({"type": "image"})], "messages[0].content[0].source"),
        (
            [user(image(type="file", file_id="f"))],
            "messages[0].content[0].source.type",
        ),
        ([user(BMP)], "messages[0].content[0].source.media_type"),
        ([user(image(type="url", url=5))], "messages[0].content[0].source.url"),
        (
            [HELLO, assistant({**call(1), "input": "x"}), user(result(1))],
            "messages[1].content[0].input",
        ),
        ([HELLO, assistant(text("a"), call(1))], "messages[1]"),
        (LARGE, "messages[3].content[2]"),
        (
            [user(result(1, [{"type": "document"}]))],
            "messages[0].content[0].content[0].type",
        ),
    ):
        assert refuse(body_of(*turns, system="Be kind.")).param == param


def test_wrong_fields_are_refused_by_name() -> None:
    for fields, param in (
        ({"system": [image(type="url", url="x")]}, "system[0].type"),
        ({"messages": []}, "messages"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"tools": [{"type": "web_search_20250305", "name": "x"}]}, "tools[0].type"),
        ({"tools": [{"name": "look"}]}, "tools[0].input_schema"),
        ({"tools": [{**LOOK, "input_schema": "x"}]}, "tools[0].input_schema"),
        ({"tools": [LOOK, {**LOOK, "description": 5}]}, "tools[1].description"),
        ({"tools": [{**LOOK, "strict": "x"}]}, "tools[0].strict"),
        ({"tools": [{**LOOK, "strict": True}]}, "tools[0].strict"),
        ({"tools": [LOOK], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        (
            {"tools": [LOOK], "tool_choice": {"type": "tool", "name": "hear"}},
            "tool_choice.name",
        ),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"output_config": {"effort": "extreme"}}, "output_config.effort"),
        (
            {"output_config": {"format": {"type": "json_schema"}}},
            "output_config.format.schema",
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": None}}},
            "output_config.format.schema",
        ),
        (
            {"output_config": {"format": {"type": "text", "schema": {}}}},
            "output_config.format.type",
        ),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ):
        assert refuse(body_of(**fields)).param == param


def test_values_that_change_nothing_are_taken() -> None:
    for fields in (
        {"metadata": {"user_id": "ann"}, "service_tier": "auto"},
        {"mcp_servers": [], "container": None, "output_config": {"effort": "high"}},
        {
            "context_management": {
                "edits": [{"type": "clear_thinking_20251015", "keep": "all"}]
            }
        },
        {"cache_control": {"type": "ephemeral"}},
        {"output_config": {"effort": "max"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    ):
        decode(body_of(**fields))


@pytest.mark.parametrize("in_result", [False, True])
@pytest.mark.parametrize("num_blocks", [1, 5000])
async def test_many_blocks_are_measured_in_a_worker(
    num_blocks: int, in_result: bool
) -> None:
    blocks = tuple(Block(type="text", text="word") for _ in range(num_blocks))
    if in_result:
        blocks = (Block(type="tool_result", tool_use_id="t1", content=blocks),)
    threads = []

    class Watched(TurnMappings):
        @property
        def num_characters(self) -> int:  # type: ignore[override]
            threads.append(threading.current_thread())
            return TurnMappings(turns, None).num_characters

    turns = (AnthropicTurn(role="user", content=blocks),)
    counted = await count_characters(RendererWorkers(1), Watched(turns, None))
    assert counted == TURN_CHARACTERS + 4 * num_blocks
    assert (threads == [threading.main_thread()]) == (num_blocks == 1)


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["type", "text", "url"]), inner, max_size=3),
    max_leaves=5,
)
TYPES = st.sampled_from(
    ["document", *{t for types in BLOCK_TYPES.values() for t in types}]
)
SOURCE = st.fixed_dictionaries(
    {"type": st.sampled_from(["base64", "url", "file"])},
    optional={"media_type": st.just("image/png") | VALUE, "data": VALUE, "url": VALUE},
)
INNER: dict[str, st.SearchStrategy[Any]] = {
    "text": st.text(max_size=4) | VALUE,
    "source": SOURCE | VALUE,
}
BLOCK = st.fixed_dictionaries(
    {"type": TYPES},
    optional={
        **INNER,
        "thinking": st.text(max_size=4) | VALUE,
        "id": st.just("t1") | VALUE,
        "name": st.just("look") | VALUE,
        "input": st.dictionaries(st.text(max_size=3), VALUE, max_size=2) | VALUE,
        "tool_use_id": st.just("t1") | VALUE,
        "content": VALUE
        | st.lists(st.fixed_dictionaries({"type": TYPES}, optional=INNER), max_size=2),
    },
)
TURN = st.fixed_dictionaries(
    {
        "role": st.sampled_from([*BLOCK_TYPES, "tool"]),
        "content": st.text(max_size=4) | st.lists(BLOCK, max_size=4),
    }
)
FIELDS = st.sampled_from(
    [*MessagesRequest.__struct_fields__, *MESSAGES_BODY.refused, "metadata"]
)


@settings(max_examples=examples(60))
@given(
    turns=st.lists(TURN, min_size=1, max_size=4),
    fields=st.dictionaries(FIELDS, VALUE, max_size=2),
    splits=st.booleans(),
)
def test_any_conversation_is_taken_or_refused_by_name(
    turns: list[Any], fields: dict[str, Any], splits: bool
) -> None:
    body = body_of(*turns, **{"messages": turns, **fields})
    try:
        request = decode(body)
        mappings = TurnMappings(request.messages, request.system)
        with explain_fields(mappings):
            to_chat_request(request, splits_reasoning=splits)
            read_messages(mappings)
        assert mappings.num_characters > 0
    except RequestError as error:
        assert error.status == 400
        assert error.param is not None
        name, _, _ = error.param.partition("[")
        assert name.partition(".")[0] in {"messages", "max_tokens", *fields}
