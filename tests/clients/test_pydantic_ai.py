"""pydantic-ai: agents with tools and structured results, by each API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anthropic
import openai
from pydantic import BaseModel
import pytest
import trio

from .city import MODEL, QUESTION, City, mark_client

pytestmark = mark_client("pydantic_ai")

APIS = ["chat", "responses", "anthropic"]


class Weather(BaseModel):
    """The weather of a city."""

    name: str
    is_sunny: bool


@asynccontextmanager
async def open_model(api: str, url: str, name: str) -> AsyncIterator[Any]:
    """Open a model by one of the APIs."""
    if api == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        async with anthropic.AsyncAnthropic(base_url=url, api_key="none") as client:
            yield AnthropicModel(
                name, provider=AnthropicProvider(anthropic_client=client)
            )
        return
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as asking:
        yield kind(name, provider=OpenAIProvider(openai_client=asking))


async def describe_paris(api: str, url: str, output_type: Any) -> Any:
    from pydantic_ai import Agent

    async with open_model(api, url, MODEL) as model:
        agent: Any = Agent(model, output_type=output_type)
        result = await agent.run(QUESTION, model_settings={"max_tokens": 80})
    return result.output


@pytest.mark.parametrize("api", APIS)
def test_a_result_is_a_call_of_a_tool(default_url: str, api: str) -> None:
    assert isinstance(asyncio.run(describe_paris(api, default_url, City)), City)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_result_is_an_answer_with_a_form(default_url: str, api: str) -> None:
    from pydantic_ai import NativeOutput

    output_type = NativeOutput(City)
    assert isinstance(asyncio.run(describe_paris(api, default_url, output_type)), City)


@pytest.mark.parametrize("api", APIS)
async def test_an_agent_uses_a_tool_and_gives_a_structured_result(
    open_scripted: Callable[..., Any], api: str
) -> None:
    cities = []

    async def run(url: str) -> Any:
        from pydantic_ai import Agent

        async with open_model(api, url, "fake") as model:
            agent: Any = Agent(model, output_type=Weather)

            @agent.tool_plain
            def get_weather(city: str) -> str:
                """Get the weather."""
                cities.append(city)
                return "Sunny."

            return (await agent.run("Is it sunny in Rome?")).output

    # The client forces a call. The script takes no notice of that, and calls anyway.
    async with open_scripted() as server:
        result = await trio.to_thread.run_sync(partial(asyncio.run, run(server.url)))
    assert cities == ["Rome"]
    assert result == Weather(name="Rome", is_sunny=True)


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_an_agent_whose_answers_have_a_form_may_use_its_tools(
    open_scripted: Callable[..., Any], api: str
) -> None:
    cities = []

    async def run(url: str) -> Any:
        from pydantic_ai import Agent, NativeOutput

        async with open_model(api, url, "fake") as model:
            agent: Any = Agent(model, output_type=NativeOutput(Weather))

            @agent.tool_plain
            def get_weather(city: str) -> str:
                """Get the weather."""
                cities.append(city)
                return "Sunny."

            return (await agent.run("Is it sunny in Rome?")).output

    script = (
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>',
        '{"name": "Rome", "is_sunny": true}',
    )
    async with open_scripted(*script) as server:
        result = await trio.to_thread.run_sync(partial(asyncio.run, run(server.url)))
    assert cities == ["Rome"]
    assert result == Weather(name="Rome", is_sunny=True)
