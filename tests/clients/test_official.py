"""OpenAI's and Anthropic's own clients, asking the default model."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from .city import MESSAGES, MODEL, QUESTION, City

pytestmark = pytest.mark.slow


SCHEMA = City.model_json_schema()


@pytest.fixture(scope="module")
def client(default_url: str) -> Any:
    with openai.OpenAI(base_url=f"{default_url}/v1", api_key="none") as client:
        yield client


@pytest.fixture(scope="module")
def anthropics(default_url: str) -> Any:
    with anthropic.Anthropic(base_url=default_url, api_key="none") as client:
        yield client


def test_a_chat_is_parsed(client: openai.OpenAI) -> None:
    chat = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=City, max_tokens=60
    )
    assert isinstance(chat.choices[0].message.parsed, City)


def test_a_tool_is_called_in_a_streamed_chat(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=MESSAGES,
        tools=[openai.pydantic_function_tool(City)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=80,
    ) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds
    assert answer.finish_reason == "tool_calls"
    [call] = answer.message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, City)


def test_a_response_is_streamed_stored_and_continued(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model=MODEL, input="What is the capital of France?", max_output_tokens=50
    ) as stream:
        pieces = [e.delta for e in stream if e.type == "response.output_text.delta"]
        first = stream.get_final_response()
    assert "".join(pieces) == first.output_text
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.parse(
        model=MODEL,
        input="Describe it.",
        previous_response_id=first.id,
        text_format=City,
        max_output_tokens=60,
    )
    assert isinstance(second.output_parsed, City)
    items = client.responses.input_items.list(second.id, order="asc").data
    assert [item.type for item in items] == ["message"] * 3


def test_a_response_calls_a_function(client: openai.OpenAI) -> None:
    response = client.responses.parse(
        model=MODEL,
        input=QUESTION,
        tools=[openai.pydantic_function_tool(City)],
        tool_choice={"type": "function", "name": "City"},
        max_output_tokens=80,
    )
    [call] = response.output
    assert call.type == "function_call"
    assert isinstance(call.parsed_arguments, City)


def test_a_message_is_answered_at_once_and_streamed(
    anthropics: anthropic.Anthropic,
) -> None:
    message = anthropics.messages.create(model=MODEL, messages=MESSAGES, max_tokens=20)
    with anthropics.messages.stream(
        model=MODEL, messages=MESSAGES, max_tokens=20
    ) as stream:
        text = "".join(stream.text_stream)
    assert message.content[0].text == text  # type: ignore[union-attr]
    assert text
    counted = anthropics.messages.count_tokens(model=MODEL, messages=MESSAGES)
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + (
        usage.cache_read_input_tokens or 0
    )


def test_a_message_uses_a_tool(anthropics: anthropic.Anthropic) -> None:
    with anthropics.messages.stream(
        model=MODEL,
        messages=MESSAGES,
        tools=[{"name": "City", "input_schema": SCHEMA}],
        tool_choice={"type": "tool", "name": "City"},
        max_tokens=80,
    ) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    [block] = message.content
    assert block.type == "tool_use"
    City.model_validate(block.input)
