"""POST /v1/responses and its store, by OpenAI's client and by plain HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
import json
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
from openai.types.responses import Response
import pytest
import trio

from trioserve.config import HttpConfig, RenderConfig
from trioserve.errors import EngineDied
from trioserve.testing.server import FakeServer, open_fake_server
from trioserve.testing.tokenizer import CHATML_TEMPLATE, IM_END

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


@asynccontextmanager
async def open_server(folder: Path, **options: Any) -> AsyncIterator[FakeServer]:
    options = {"answer": ANSWER, "eos_token": IM_END, **options}
    with trio.fail_after(30):
        async with open_fake_server(folder, **options) as server:
            yield server


@asynccontextmanager
async def open_client(server: FakeServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


@pytest.fixture
async def server(tokenizer_folder: Path) -> AsyncIterator[FakeServer]:
    async with open_server(tokenizer_folder) as server:
        yield server


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with open_client(server) as client:
        yield client


def check(response: Response) -> None:
    """Validate a response: the client itself reads any JSON."""
    Response.model_validate(response.model_dump(warnings=False))


async def read_events(server: FakeServer, body: object) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        answer = await client.post(PATH, json=body)
    return parse_events(answer)


def parse_events(answer: httpx.Response) -> list[dict[str, Any]]:
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


async def test_a_text_is_answered(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(
        model="fake",
        input="Hello",
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


async def test_a_response_and_a_chat_get_the_same_prompt_and_give_the_same_text(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    history: list[Any] = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "Who sleeps?"},
    ]
    system = {"role": "system", "content": "Be brief."}
    chat = await client.chat.completions.create(
        model="fake", messages=[system, *history], seed=1  # type: ignore[list-item]
    )
    response = await client.responses.create(
        model="fake", input=history, instructions="Be brief.", extra_body={"seed": 1}
    )
    assert response.output_text == chat.choices[0].message.content
    starts = [start for plan in server.device.plans for start in plan.starts]
    prompts = [start.prompt_token_ids for start in starts]
    assert len(prompts) == 2
    assert prompts[0] == prompts[1]


async def test_a_stream_has_all_events_in_order(server: FakeServer) -> None:
    events = await read_events(server, {"input": "Hello", "stream": True})
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(len(events)))
    assert list_types(events) == [
        "response.created",
        "response.in_progress",
        *(each.format("output_text") for each in TEXT_EVENTS),
        "response.completed",
    ]
    pieces = [e["delta"] for e in events if e["type"].endswith("_text.delta")]
    assert len(pieces) > 4
    assert "".join(pieces) == ANSWER
    last = events[-1]["response"]
    assert last["output"] == [events[-2]["item"]]
    assert events[0]["response"]["output"] == []
    assert {e["response"]["id"] for e in events if "response" in e} == {last["id"]}
    items = {e["item_id"] for e in events if "item_id" in e}
    assert items == {last["output"][0]["id"]}


async def test_the_client_accumulates_a_stream(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(model="fake", input="Hello") as stream:
        snapshots = [
            event.snapshot
            async for event in stream
            if event.type == "response.output_text.delta"
        ]
        response = await stream.get_final_response()
    assert snapshots[-1] == response.output_text == ANSWER
    check(await client.responses.retrieve(response.id))


@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_that_is_cut_off_is_incomplete(
    client: openai.AsyncOpenAI, streams: bool
) -> None:
    if streams:
        events = await client.responses.create(
            model="fake", input="Hello", max_output_tokens=3, stream=True
        )
        event = [event async for event in events][-1]
        assert event.type == "response.incomplete"
        response = event.response
    else:
        response = await client.responses.create(
            model="fake", input="Hello", max_output_tokens=3
        )
    check(response)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"  # type: ignore[union-attr]
    assert ANSWER.startswith(response.output_text)
    assert response.usage is not None
    assert response.usage.output_tokens == 3


async def test_reasoning_is_an_item_of_its_own(tokenizer_folder: Path) -> None:
    async with open_server(
        tokenizer_folder,
        answer=f"<think>\n{REASONING}\n</think>\n\n{ANSWER}",
        render=RenderConfig(reasoning_parser="qwen3"),
        chat_template=CHATML_TEMPLATE.replace(
            "message['content']", "(message.reasoning or '') + message['content']"
        ),
    ) as server:
        events = await read_events(server, {"input": "Hello", "stream": True})
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
        async with open_client(server) as client:
            again = await client.responses.create(
                model="fake",
                input=[user("Hello"), *response["output"], user("And now?")],
            )
            check(again)
            assert [each.type for each in again.output] == ["reasoning", "message"]
        start = [start for plan in server.device.plans for start in plan.starts][-1]
        renderer: Any = server.state.engine.renderer  # type: ignore[union-attr]
        text = b"".join(map(renderer.token_bytes, start.prompt_token_ids)).decode()
        assert REASONING in text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"previous_response_id": "resp_0"}, "previous_response_id"),
        ({"input": "a " * 500}, "input"),
        ({"max_output_tokens": 256}, "max_output_tokens"),
        ({"input": [user("a"), {"role": "user", "content": [IMAGE]}]}, "input[1]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
    ],
)
async def test_errors_name_the_fields_of_the_response(
    server: FakeServer, fields: Any, param: str
) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        answer = await client.post(PATH, json={"input": "Hello"} | fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    if "maximum context length" not in error["message"]:
        assert error["message"].startswith(param)


async def test_a_failure_among_the_tokens_ends_the_stream_with_an_event(
    tokenizer_folder: Path,
) -> None:
    async with open_fake_server(tokenizer_folder) as server:
        with trio.fail_after(60):
            async with open_client(server) as client:
                events = await client.responses.create(
                    model="fake", input="Hello", max_output_tokens=200, stream=True
                )
                types = []
                async for event in events:
                    types.append(event.type)
                    if event.type == "response.output_text.delta":
                        server.engine.close_requests(EngineDied())
    assert types[-1] == "response.failed"


async def test_a_conversation_goes_on_from_a_stored_response(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    first = await client.responses.create(
        model="fake", input="Hello", instructions="Be brief."
    )
    second = await client.responses.create(
        model="fake", input="Who?", previous_response_id=first.id
    )
    assert second.previous_response_id == first.id
    third = await client.responses.create(
        model="fake", input="Why?", previous_response_id=second.id
    )
    chat: list[Any] = []
    for question in ("Hello", "Who?"):
        chat += [user(question), {"role": "assistant", "content": ANSWER}]
    await client.chat.completions.create(model="fake", messages=[*chat, user("Why?")])
    prompts = [s.prompt_token_ids for p in server.device.plans for s in p.starts]
    # The third response does not have the instructions of the first.
    assert prompts[-1] == prompts[-2]
    items = await client.responses.input_items.list(third.id, order="asc")
    texts = [each.content[0].text for each in items.data]  # type: ignore[union-attr]
    assert texts == ["Hello", ANSWER, "Who?", ANSWER, "Why?"]


async def test_a_stored_response_is_shown_and_deleted(
    client: openai.AsyncOpenAI,
) -> None:
    response = await client.responses.create(model="fake", input="Hello")
    assert await client.responses.retrieve(response.id) == response
    await client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError, match=response.id):
        await client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.delete(response.id)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        await client.responses.create(
            model="fake", input="Hello", previous_response_id=response.id
        )


async def test_a_response_is_not_stored_if_its_client_does_not_want_it(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    response = await client.responses.create(model="fake", input="Hello", store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)
    assert server.state.responses.statistics().num_responses == 0


async def test_a_server_that_stores_nothing_says_so(tokenizer_folder: Path) -> None:
    config = HttpConfig(response_max_age=0.0)
    async with (
        open_server(tokenizer_folder, http=config) as server,
        open_client(server) as client,
    ):
        response = await client.responses.create(model="fake", input="Hello")
        assert response.store is False  # type: ignore[attr-defined]
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response.id)
        for field in ("store", "background"):
            with pytest.raises(openai.BadRequestError, match="response-max-age"):
                await client.responses.create(
                    model="fake", input="Hello", **{field: True}  # type: ignore[call-overload]
                )


async def test_input_items_come_in_pages(client: openai.AsyncOpenAI) -> None:
    inputs: list[Any] = [user(str(number)) for number in range(5)]
    response = await client.responses.create(model="fake", input=inputs)

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
            await client.responses.input_items.list(response.id, **query)  # type: ignore[arg-type]


async def test_only_responses_in_the_background_can_be_cancelled_or_followed(
    client: openai.AsyncOpenAI,
) -> None:
    response = await client.responses.create(model="fake", input="Hello")
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.cancel(response.id)
    with pytest.raises(openai.BadRequestError, match="stream"):
        await client.responses.retrieve(response.id, stream=True)


async def test_a_client_that_leaves_ends_its_response_and_leaves_nothing(
    tokenizer_folder: Path,
) -> None:
    async with open_fake_server(tokenizer_folder, step_seconds=0.05) as server:
        with trio.fail_after(60):
            async with open_client(server) as client:
                events = await client.responses.create(
                    model="fake", input="Hello", max_output_tokens=200, stream=True
                )
                async with aclosing(events.__aiter__()) as iterator:
                    async for event in iterator:
                        if event.type == "response.output_text.delta":
                            break
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
TOOL_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} <tool_call>{name, arguments}</tool_call>"
    "{% endif %}{% for m in messages %}[{{ m.role }}:{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}>{% endfor %}]{% endfor %}"
)


@pytest.mark.parametrize("continues", [False, True])
async def test_a_function_is_called_and_its_result_goes_back(
    tokenizer_folder: Path, continues: bool
) -> None:
    call = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
    async with (
        open_server(
            tokenizer_folder,
            answer=f"I look.\n<tool_call>\n{call}\n</tool_call>",
            chat_template=TOOL_TEMPLATE,
            max_model_len=1024,
        ) as server,
        open_client(server) as client,
    ):
        async with client.responses.stream(
            model="fake", input=[user("Weather?")], tools=[TOOL]  # type: ignore[list-item]
        ) as stream:
            pieces = [
                event.delta
                async for event in stream
                if event.type == "response.function_call_arguments.delta"
            ]
            response = await stream.get_final_response()
        assert "".join(pieces) == ARGUMENTS
        message, called = response.output
        assert response.output_text == "I look."
        assert called.type == "function_call"
        assert (called.name, called.arguments) == ("weather", ARGUMENTS)
        assert called.call_id.startswith("call_")
        result = {
            "type": "function_call_output",
            "call_id": called.call_id,
            "output": "sunny",
        }
        history = [user("Weather?"), message.to_dict(), called.to_dict(), result]
        again = await client.responses.create(
            model="fake",
            input=[result] if continues else history,  # type: ignore[arg-type, list-item]
            previous_response_id=response.id if continues else None,
        )
        check(again)
        start = [start for plan in server.device.plans for start in plan.starts][-1]
        renderer: Any = server.state.engine.renderer  # type: ignore[union-attr]
        text = b"".join(map(renderer.token_bytes, start.prompt_token_ids)).decode()
        assert text == (
            f"[user:Weather?][assistant:I look.<weather {ARGUMENTS}>][tool:sunny]"
        )


async def test_a_function_that_is_hidden_is_not_called(tokenizer_folder: Path) -> None:
    async with (
        open_server(
            tokenizer_folder, chat_template=TOOL_TEMPLATE, max_model_len=1024
        ) as server,
        open_client(server) as client,
    ):
        response = await client.responses.create(
            model="fake", input="Weather?", tools=[TOOL], tool_choice="none"
        )
        assert response.tool_choice == "none"
        assert response.output_text == ANSWER


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "weather"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "weather"}],
        },
    ],
)
async def test_a_call_may_be_forced(tokenizer_folder: Path, choice: Any) -> None:
    async with (
        open_server(
            tokenizer_folder, chat_template=TOOL_TEMPLATE, max_model_len=1024
        ) as server,
        open_client(server) as client,
    ):
        response = await client.responses.create(
            model="fake", input="Weather?", tools=[TOOL], tool_choice=choice
        )
        sent = response.tool_choice
        assert (sent if isinstance(sent, str) else sent.to_dict()) == choice
        grammar = server.device.plans[0].starts[0].sampling.grammar
        assert grammar is not None and "weather" in grammar.text
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(
                model="fake",
                input="Weather?",
                tools=[TOOL],
                tool_choice={"type": "function", "name": "fly"},
            )
        assert caught.value.param == "tool_choice.name"


@pytest.mark.parametrize("is_cut", [True, False])
async def test_a_call_that_is_incomplete_is_left_out_of_the_conversation(
    tokenizer_folder: Path, is_cut: bool
) -> None:
    """Templates take no half arguments, so the response could never be continued."""
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Wi'
    async with (
        open_server(
            tokenizer_folder,
            answer=(call, ANSWER),
            chat_template=TOOL_TEMPLATE,
            max_model_len=1024,
        ) as server,
        open_client(server) as client,
    ):
        cut = await client.responses.create(
            model="fake",
            input="Weather?",
            tools=[TOOL],
            # Else the model ends its turn there.
            max_output_tokens=len(server.answer_ids) if is_cut else None,
            extra_body={"seed": 1},
        )
        assert cut.status == ("incomplete" if is_cut else "completed")
        [called] = cut.output
        assert (called.type, called.status) == ("function_call", "incomplete")
        result: Any = {
            "type": "function_call_output",
            "call_id": called.call_id,  # type: ignore[union-attr]
            "output": "The arguments are not JSON.",
        }
        for new in ("Go on.", [result, user("Go on.")]):
            again = await client.responses.create(
                model="fake",
                input=new,
                previous_response_id=cut.id,
                extra_body={"seed": 2},
            )
            assert again.output_text == ANSWER
            start = [start for plan in server.device.plans for start in plan.starts][-1]
            renderer: Any = server.state.engine.renderer  # type: ignore[union-attr]
            text = b"".join(map(renderer.token_bytes, start.prompt_token_ids)).decode()
            assert text == "[user:Weather?][assistant:][user:Go on.]"


@pytest.mark.parametrize("streams", [False, True])
async def test_a_response_that_is_too_large_to_be_stored_says_so(
    tokenizer_folder: Path, streams: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = HttpConfig(max_responses_memory="4000")
    async with (
        open_server(tokenizer_folder, http=config, eos_token=None) as server,
        open_client(server) as client,
    ):

        async def ask(max_output_tokens: int, **fields: Any) -> Any:
            asking = {"model": "fake", "input": "Hello", **fields}
            asking["max_output_tokens"] = max_output_tokens
            if not streams:
                return await client.responses.create(**asking)
            events = await client.responses.create(stream=True, **asking)
            return [event async for event in events][-1].response

        small = await ask(1)
        assert small.store is True
        assert await client.responses.retrieve(small.id)
        large = await ask(200)
        assert large.store is False
        assert len(large.output_text) > 200
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(large.id)
        # The small one was not driven out.
        assert await client.responses.retrieve(small.id)
        assert f"{large.id} is not stored" in caplog.text
        # A request that is too large alone is refused only if its client insists.
        items = [
            {"role": "user", "content": [{"type": "input_text", "text": ""}] * 100}
        ]
        assert (await ask(1, input=items)).store is False
        for name in ("store", "background"):
            with pytest.raises(openai.BadRequestError, match="at most 4000 bytes") as e:
                await client.responses.create(
                    model="fake", input=items, **{name: True}  # type: ignore[call-overload]
                )
            assert e.value.param == name
