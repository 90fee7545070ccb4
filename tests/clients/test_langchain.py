"""LangChain's ChatOpenAI, by chat completions and by the Responses API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from .city import MODEL, QUESTION, City, mark_client

pytestmark = mark_client("langchain_openai")


def make_model(url: str, model: str = MODEL, **options: Any) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model=model, base_url=f"{url}/v1", api_key="none", max_tokens=80, **options
    )


@pytest.mark.parametrize("responses", [False, True])
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_an_output_is_structured(
    default_url: str, method: str, responses: bool
) -> None:
    model = make_model(default_url, use_responses_api=responses)
    structured = model.with_structured_output(City, method=method)
    assert isinstance(structured.invoke(QUESTION), City)


@pytest.mark.parametrize("responses", [False, True])
def test_a_bound_tool_is_called_and_streamed(default_url: str, responses: bool) -> None:
    model = make_model(default_url, use_responses_api=responses, stream_usage=True)
    bound = model.bind_tools([City], tool_choice="City")
    whole = bound.invoke(QUESTION)
    pieces = list(bound.stream(QUESTION))
    streamed = sum(pieces[1:], pieces[0])
    for answer in (whole, streamed):
        [call] = answer.tool_calls
        assert call["name"] == "City"
        City.model_validate(call["args"])
        assert answer.usage_metadata["output_tokens"] > 5


@pytest.mark.parametrize("responses", [False, True])
async def test_results_of_tools_go_back_until_the_answer(
    open_scripted: Callable[..., Any], responses: bool
) -> None:
    def run(url: str) -> list[Any]:
        from langchain_core.messages import HumanMessage
        from langchain_core.tools import tool

        @tool
        def get_weather(city: str) -> str:
            """Get the weather."""
            return f"Sunny in {city}."

        @tool
        def final_result(name: str, is_sunny: bool) -> str:
            """Take the result."""
            return "Taken."

        tools = {each.name: each for each in (get_weather, final_result)}
        model = make_model(url, "fake", use_responses_api=responses)
        bound = model.bind_tools(list(tools.values()))
        messages: list[Any] = [HumanMessage("Is it sunny in Rome?")]
        while True:
            answer = bound.invoke(messages)
            messages.append(answer)
            if not answer.tool_calls:
                return messages
            for call in answer.tool_calls:
                messages.append(tools[call["name"]].invoke(call))

    async with open_scripted() as server:
        messages = await trio.to_thread.run_sync(run, server.url)
    assert [message.type for message in messages] == [
        *("human", "ai", "tool", "ai", "tool", "ai")
    ]
    assert messages[2].content == "Sunny in Rome."
    assert messages[-1].text == "Rome is sunny."
