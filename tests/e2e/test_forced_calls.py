"""Calls that a client forces, from the official client to a tiny random model.

A random model has no wish to call tools: only the grammar makes it do so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
import json
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
import trio

pytestmark = [
    pytest.mark.slow,
    # The client (3.54) leaves generators of its HTTP library to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
PARAMETERS = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 4},
            "days": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "stop": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": parameters}}
    for name, parameters in PARAMETERS.items()
]
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def url(
    model_folder: Path,
    start_server: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text(TEMPLATE)
    server = start_server(
        *(str(model_folder), "--chat-template", str(template)),
        *("--tool-call-parser", "hermes", "--no-engine-process"),
    )
    return f"{server.url}/v1"


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    with trio.fail_after(60):
        async with openai.AsyncOpenAI(
            base_url=url, api_key="none", max_retries=0
        ) as client:
            yield client


async def ask(client: openai.AsyncOpenAI, streams: bool, **fields: Any) -> Any:
    body: dict[str, Any] = {
        "model": "tiny-llama",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": TOOLS,
        "temperature": 1,
        "max_tokens": 300,
        **fields,
    }
    if not streams:
        return await client.chat.completions.create(**body)
    async with client.chat.completions.stream(**body) as stream:
        return await stream.get_final_completion()


@pytest.mark.parametrize(
    ("streams", "choice", "names"),
    [(False, "required", {"weather", "stop"}), (True, NAMED, {"weather"})],
)
async def test_a_forced_answer_is_one_call_that_matches_its_tool(
    client: openai.AsyncOpenAI, streams: bool, choice: Any, names: set[str]
) -> None:
    # A named tool is called once in any case.
    one = {} if choice is NAMED else {"parallel_tool_calls": False}
    answer = await ask(client, streams, tool_choice=choice, n=6, seed=1, **one)
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        [call] = choice.message.tool_calls
        assert call.function.name in names
        jsonschema.validate(
            json.loads(call.function.arguments), PARAMETERS[call.function.name]
        )


async def test_several_calls_may_be_forced(client: openai.AsyncOpenAI) -> None:
    """The model may end behind each call, so some answers have several."""
    answer = await ask(client, False, tool_choice="required", n=8, seed=1)
    for choice in answer.choices:
        assert choice.message.tool_calls
        whole = choice.message.tool_calls
        if choice.finish_reason == "length":
            whole = whole[:-1]
        for call in whole:
            jsonschema.validate(
                json.loads(call.function.arguments), PARAMETERS[call.function.name]
            )


async def test_an_answer_has_its_form_or_calls(client: openai.AsyncOpenAI) -> None:
    schema = {**PARAMETERS["weather"], "required": ["days"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = await ask(client, False, response_format=form, n=12, seed=1)
    reasons = set()
    for choice in answer.choices:
        reasons.add(choice.finish_reason)
        if choice.finish_reason == "stop":
            assert choice.message.tool_calls is None
            jsonschema.validate(json.loads(choice.message.content), schema)
        elif choice.finish_reason == "tool_calls":
            assert choice.message.tool_calls and choice.message.content is None
    # A random model begins most answers with the part of the tag outside of special tokens.
    assert {"stop", "tool_calls"} <= reasons


async def test_a_schema_that_no_grammar_expresses_is_400(
    client: openai.AsyncOpenAI,
) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "strange"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(client, False, tools=tools, tool_choice="required")
    assert caught.value.param == "tools[0].function.parameters"
    assert "#/properties/a: " in caught.value.message
