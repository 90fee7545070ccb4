"""POST /v1/responses and its store, by OpenAI's client and by plain HTTP."""

from __future__ import annotations

from contextlib import aclosing
import json
from typing import Any

import httpx2 as httpx
import openai
from openai.types.responses import Response
import pytest
import trio

from trioserve.config import HttpConfig, RenderConfig
from trioserve.errors import EngineDied
from trioserve.testing.server import FakeServer
from trioserve.testing.tokenizer import CHATML_TEMPLATE, IM_END

from ..seen import list_starts, read_prompt

PATH = "/v1/responses"
ANSWER = "The dog sleeps on."
REASONING = "Hm, a dog."

IMAGE = {"type": "input_image", "image_url": "http://x/y.png", "detail": "auto"}

# The types of the events of an item with a text, in order, with its pieces left out.
TEXT_EVENTS = [
    "response.output_item.added",
    "response.content_part.added",
    "response.{}.delta",
    "response.{}.done",
    "response.content_part.done",
    "response.output_item.done",
]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


pytestmark = pytest.mark.server(answer=ANSWER, eos_token=IM_END)


@pytest.fixture
def client(openai_client: openai.AsyncOpenAI) -> Any:
    return openai_client


async def ask(client: Any, **fields: Any) -> Any:
    """Return the response to Hello, or to another input."""
    fields = {"model": "fake", "input": "Hello"} | fields
    return await client.responses.create(**fields)


def check(response: Response) -> None:
    """Validate a response: the client itself reads any JSON."""
    Response.model_validate(response.model_dump(warnings=False))


async def read_events(server: FakeServer, **body: object) -> list[dict[str, Any]]:
    """Return the events of the answer to Hello."""
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        answer = await client.post(
            PATH, json={"input": "Hello", "stream": True, **body}
        )
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in answer.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def list_types(events: list[dict[str, Any]]) -> list[str]:
    """Return the types of events, with each run of pieces once."""
    types: list[str] = []
    for event in events:
        if not types or event["type"] != types[-1]:
            types.append(event["type"])
    return types


async def test_a_text_is_answered(client: Any) -> None:
    response = await ask(
        client,
        instructions="Be brief.",
        metadata={"a": "b"},
        temperature=0.5,
        top_p=0.9,
    )
    check(response)
    assert response.id.startswith("resp_")
    assert response.status == "completed"
    assert response.output_text == ANSWER
    [message] = response.output
    assert (message.type, message.status) == ("message", "completed")
    assert response.metadata == {"a": "b"}
    assert (response.temperature, response.top_p) == (0.5, 0.9)
    assert response.instructions == "Be brief."
    assert response.completed_at is not None
    assert response.error is response.incomplete_details is None
    usage = response.usage
    assert usage is not None
    assert usage.output_tokens > 4
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.input_tokens_details.cached_tokens == 0
    assert usage.output_tokens_details.reasoning_tokens == 0


async def test_a_stream_has_all_events_in_order(server: FakeServer) -> None:
    events = await read_events(server)
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(len(events)))
    assert list_types(events) == [
        "response.created",
        "response.in_progress",
        *(each.format("output_text") for each in TEXT_EVENTS),
        "response.completed",
    ]
    pieces = [e["delta"] for e in events if e["type"].endswith("_text.delta")]
    assert len(pieces) > 1
    assert "".join(pieces) == ANSWER
    last = events[-1]["response"]
    assert last["output"] == [events[-2]["item"]]
    assert events[0]["response"]["output"] == []
    assert {e["response"]["id"] for e in events if "response" in e} == {last["id"]}
    items = {e["item_id"] for e in events if "item_id" in e}
    assert items == {last["output"][0]["id"]}


async def test_the_client_accumulates_a_stream(client: Any) -> None:
    async with client.responses.stream(model="fake", input="Hello") as stream:
        snapshots = [
            event.snapshot
            async for event in stream
            if event.type == "response.output_text.delta"
        ]
        response = await stream.get_final_response()
    assert snapshots[-1] == response.output_text == ANSWER
    check(await client.responses.retrieve(response.id))


async def test_an_answer_that_is_cut_off_is_incomplete(client: Any) -> None:
    for streams in (False, True):
        response = await ask(client, max_output_tokens=3, stream=streams)
        if streams:
            event = [event async for event in response][-1]
            assert event.type == "response.incomplete", streams
            response = event.response
        check(response)
        assert response.status == "incomplete", streams
        assert response.incomplete_details.reason == "max_output_tokens", streams
        assert response.output[0].status == "incomplete", streams
        assert ANSWER.startswith(response.output_text), streams
        assert response.usage.output_tokens == 3, streams


@pytest.mark.server(
    answer=f"<think>\n{REASONING}\n</think>\n\n{ANSWER}",
    render=RenderConfig(reasoning_parser="qwen3"),
    chat_template=CHATML_TEMPLATE.replace(
        "message['content']", "(message.reasoning or '') + message['content']"
    ),
)
async def test_reasoning_is_an_item_of_its_own(server: FakeServer, client: Any) -> None:
    events = await read_events(server)
    assert list_types(events)[2:-1] == [
        each.format(kind)
        for kind in ("reasoning_text", "output_text")
        for each in TEXT_EVENTS
    ]
    response = events[-1]["response"]
    reasoning, message = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": REASONING}]
    assert message["content"][0]["text"] == ANSWER
    details = response["usage"]["output_tokens_details"]
    assert details["reasoning_tokens"] > 0
    # The items can be sent back as they are, and the model sees the reasoning.
    history = [user("Hello"), *response["output"], user("And now?")]
    again = await ask(client, input=history)
    check(again)
    assert [each.type for each in again.output] == ["reasoning", "message"]
    assert REASONING in read_prompt(server)


async def test_errors_name_the_fields_of_the_response(server: FakeServer) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"previous_response_id": "resp_0"}, "previous_response_id"),
        ({"input": "a " * 500}, "input"),
        ({"max_output_tokens": 256}, "max_output_tokens"),
        ({"input": [user("a"), {"role": "user", "content": [IMAGE]}]}, "input[1]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
    ]
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        for fields, param in rows:
            answer = await client.post(PATH, json={"input": "Hello"} | fields)
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["param"] == param
            if "maximum context length" not in error["message"]:
                assert error["message"].startswith(param)


@pytest.mark.server(eos_token=None)
async def test_a_failure_among_the_tokens_ends_the_stream_with_an_event(
    server: FakeServer, client: Any
) -> None:
    types = []
    async for event in await ask(client, max_output_tokens=200, stream=True):
        types.append(event.type)
        if event.type == "response.output_text.delta":
            server.engine.close_requests(EngineDied())
    assert types[-1] == "response.failed"


async def test_a_conversation_goes_on_from_a_stored_response(
    server: FakeServer, client: Any
) -> None:
    first = await ask(client, instructions="Be brief.")
    second = await ask(client, input="Who?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    third = await ask(client, input="Why?", previous_response_id=second.id)
    chat: list[Any] = []
    for question in ("Hello", "Who?"):
        chat += [user(question), {"role": "assistant", "content": ANSWER}]
    await client.chat.completions.create(model="fake", messages=[*chat, user("Why?")])
    prompts = [start.prompt_token_ids for start in list_starts(server)]
    # The third response does not have the instructions of the first.
    assert prompts[-1] == prompts[-2]
    items = await client.responses.input_items.list(third.id, order="asc")
    texts = [each.content[0].text for each in items.data]
    assert texts == ["Hello", ANSWER, "Who?", ANSWER, "Why?"]


async def test_a_stored_response_is_shown_and_deleted(
    client: Any,
) -> None:
    response = await ask(client)
    assert await client.responses.retrieve(response.id) == response
    await client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError, match=response.id):
        await client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.delete(response.id)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        await ask(client, previous_response_id=response.id)


async def test_a_response_is_not_stored_if_its_client_does_not_want_it(
    server: FakeServer, client: Any
) -> None:
    response = await ask(client, store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)
    assert server.state.responses.statistics().num_responses == 0


@pytest.mark.server(http=HttpConfig(response_max_age=0.0))
async def test_a_server_that_stores_nothing_says_so(client: Any) -> None:
    response = await ask(client)
    assert response.store is False
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)
    for field in ("store", "background"):
        with pytest.raises(openai.BadRequestError, match="response-max-age"):
            await ask(client, **{field: True})


async def test_input_items_come_in_pages(client: Any) -> None:
    inputs: list[Any] = [user(str(number)) for number in range(5)]
    response = await ask(client, input=inputs)

    def read(page: Any) -> list[str]:
        return [each.content[0].text for each in page.data]

    page = await client.responses.input_items.list(response.id, limit=2)
    assert (read(page), page.has_more) == (["4", "3"], True)
    everything = [each async for each in page]
    assert len({each.id for each in everything}) == 5
    page = await client.responses.input_items.list(
        response.id, order="asc", after=everything[1].id or ""
    )
    assert (read(page), page.has_more) == (["4"], False)
    for query in ({"limit": 0}, {"order": "up"}, {"after": "nothing"}):
        with pytest.raises(openai.BadRequestError, match=next(iter(query))):
            await client.responses.input_items.list(response.id, **query)


async def test_only_responses_in_the_background_can_be_cancelled_or_followed(
    client: Any,
) -> None:
    response = await ask(client)
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.cancel(response.id)
    with pytest.raises(openai.BadRequestError, match="stream"):
        await client.responses.retrieve(response.id, stream=True)


@pytest.mark.server(step_seconds=0.05, eos_token=None)
async def test_a_client_that_leaves_ends_its_response_and_leaves_nothing(
    server: FakeServer, client: Any
) -> None:
    events = await ask(client, max_output_tokens=200, stream=True)
    async with aclosing(events.__aiter__()) as iterator:
        async for event in iterator:
            if event.type == "response.output_text.delta":
                break
    await client.close()
    while server.engine.statistics().num_streams:
        await trio.lowlevel.checkpoint()
    assert server.state.responses.statistics().num_responses == 0


TOOL: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
ARGUMENTS = '{"city": "Wien"}'
CALL = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
TOOL_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} <tool_call>{name, arguments}</tool_call>"
    "{% endif %}{% for m in messages %}[{{ m.role }}:{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}>{% endfor %}]{% endfor %}"
)


@pytest.mark.server(
    answer=f"I look.\n<tool_call>\n{CALL}\n</tool_call>",
    chat_template=TOOL_TEMPLATE,
    max_model_len=1024,
)
async def test_a_function_is_called_and_its_result_goes_back(
    server: FakeServer, client: Any
) -> None:
    async with client.responses.stream(
        model="fake", input=[user("Weather?")], tools=[TOOL]
    ) as stream:
        pieces = [
            event.delta
            async for event in stream
            if event.type == "response.function_call_arguments.delta"
        ]
        response = await stream.get_final_response()
    assert "".join(pieces) == ARGUMENTS
    _, called = response.output
    assert response.output_text == "I look."
    assert called.type == "function_call"
    assert (called.name, called.arguments) == ("weather", ARGUMENTS)
    assert called.call_id.startswith("call_")
    result = {
        "type": "function_call_output",
        "call_id": called.call_id,
        "output": "sunny",
    }
    again = await ask(client, input=[result], previous_response_id=response.id)
    check(again)
    assert read_prompt(server) == (
        f"[user:Weather?][assistant:I look.<weather {ARGUMENTS}>][tool:sunny]"
    )


@pytest.mark.server(
    answer=f"<tool_call>\n{CALL}\n</tool_call>".replace("weather", "sky__weather"),
    chat_template=TOOL_TEMPLATE,
    max_model_len=1024,
)
async def test_a_function_in_a_namespace_is_called_by_both_names(
    server: FakeServer, client: Any
) -> None:
    namespace = {"type": "namespace", "name": "sky", "description": "", "tools": [TOOL]}
    fields = {"input": [user("Weather?")], "tools": [namespace, TOOL]}
    async with client.responses.stream(model="fake", **fields) as stream:
        response = await stream.get_final_response()
    [called] = [item.to_dict() for item in response.output]
    assert (called["namespace"], called["name"]) == ("sky", "weather")
    assert '"name": "sky__weather"' in read_prompt(server)
    # Clients that keep the conversation themselves send the call as they got it.
    result = {"type": "function_call_output", "call_id": called["call_id"]}
    await ask(client, input=[user("Weather?"), called, result | {"output": "sunny"}])
    first = read_prompt(server)
    assert f"<sky__weather {ARGUMENTS}>][tool:sunny]" in first
    result |= {"output": "sunny"}
    await ask(client, input=[result], previous_response_id=response.id)
    assert read_prompt(server) == first


@pytest.mark.server(chat_template=TOOL_TEMPLATE, max_model_len=1024)
async def test_a_response_repeats_the_choice_of_its_tools(client: Any) -> None:
    named = {"type": "function", "name": "weather"}
    for choice in ("none", "required", named):
        response = (await ask(client, tools=[TOOL], tool_choice=choice)).to_dict()
        assert response["tool_choice"] == choice
        assert response["output"][0]["content"][0]["text"] == ANSWER
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(client, tools=[TOOL], tool_choice=named | {"name": "fly"})
    assert caught.value.param == "tool_choice.name"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.server(http=HttpConfig(max_responses_memory="4000"), eos_token=None)
async def test_a_response_that_is_too_large_to_be_stored_says_so(
    client: Any, streams: bool, caplog: pytest.LogCaptureFixture
) -> None:

    async def fill(max_output_tokens: int, **fields: Any) -> Any:
        fields["max_output_tokens"] = max_output_tokens
        response = await ask(client, stream=streams, **fields)
        return [event async for event in response][-1].response if streams else response

    small = await fill(1)
    assert small.store is True
    assert await client.responses.retrieve(small.id)
    large = await fill(200)
    assert large.store is False
    assert len(large.output_text) > 200
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(large.id)
    # The small one was not driven out.
    assert await client.responses.retrieve(small.id)
    assert f"{large.id} is not stored" in caplog.text
    # A request that is too large alone is refused only if its client insists.
    items = [{"role": "user", "content": [{"type": "input_text", "text": ""}] * 100}]
    assert (await fill(1, input=items)).store is False
    for name in ("store", "background"):
        with pytest.raises(openai.BadRequestError, match="at most 4000 bytes") as e:
            await ask(client, input=items, **{name: True})
        assert e.value.param == name
