"""Reasoning in chats: a separate field, a token count, and a budget."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest
import trio

from trioserve.api.chat.body import CHAT_BODY
from trioserve.api.shared.message_mappings import MessageMappings
from trioserve.config import RenderConfig
from trioserve.errors import InvalidParameter
from trioserve.testing.server import FakeServer
from trioserve.testing.tokenizer import CHATML_TEMPLATE
from trioserve.types.sampling import ReasoningBudget

from ..seen import list_starts

decode_chat = CHAT_BODY.decode


REASONING = "Hm, the dog sleeps."
CONTENT = "The quick brown fox."
ANSWER = f"<think>\n{REASONING}\n</think>\n\n{CONTENT}"

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
CHAT_PATH = "/v1/chat/completions"

pytestmark = pytest.mark.server(
    answer=ANSWER, render=RenderConfig(reasoning_parser="qwen3")
)


def ask(server: FakeServer, **fields: Any) -> dict[str, Any]:
    """Return the body of a request that gets the whole answer once."""
    return CHAT | {"max_tokens": len(server.answer_ids)} | fields


def count_reasoning(server: FakeServer) -> int:
    """Count the tokens up to the end tag, by their bytes."""
    token_bytes = server.state.engine.renderer.token_bytes
    end, length = server.answer.index("</think>") + len("</think>"), 0
    for number, token_id in enumerate(server.answer_ids):
        if length >= end:
            return number
        length += len(token_bytes(token_id))
    raise AssertionError("the answer has a part after its reasoning")


async def read_events(client: httpx.AsyncClient, body: object) -> list[Any]:
    async with client.stream("POST", CHAT_PATH, json=body) as response:
        assert response.status_code == 200
        lines = [line async for line in response.aiter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def list_deltas(events: list[Any]) -> list[dict[str, Any]]:
    return [event["choices"][0]["delta"] for event in events if event["choices"]]


async def test_a_whole_answer_has_its_reasoning_in_a_separate_field(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    answer = (await client.post(CHAT_PATH, json=ask(server))).json()
    message = answer["choices"][0]["message"]
    assert message["reasoning"] == REASONING
    assert message["content"] == CONTENT
    usage = answer["usage"]
    assert usage["completion_tokens"] == len(server.answer_ids)
    details = {"reasoning_tokens": count_reasoning(server)}
    assert usage["completion_tokens_details"] == details


async def test_a_streams_chunks_are_of_the_reasoning_or_of_the_answer(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    body = ask(server, stream=True, stream_options={"include_usage": True})
    events = await read_events(client, body)
    first, *deltas = list_deltas(events)
    assert first == {"role": "assistant", "content": ""}
    assert all(len(delta) == 1 for delta in deltas)
    kinds = [next(iter(delta)) for delta in deltas]
    assert kinds == sorted(kinds, reverse=True)
    assert set(kinds) == {"reasoning", "content"}
    assert "".join(delta.get("reasoning", "") for delta in deltas) == REASONING
    assert "".join(delta.get("content", "") for delta in deltas) == CONTENT
    # All have text except the last one, which has the finish reason.
    assert all(text for delta in deltas[:-1] for text in delta.values())
    details = events[-1]["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": count_reasoning(server)}


async def test_continuous_usage_counts_the_reasoning_so_far(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = ask(server, stream=True, stream_options=options)
    counts = [
        event["usage"]["completion_tokens_details"]["reasoning_tokens"]
        for event in await read_events(client, body)
    ]
    assert counts == sorted(counts)
    assert len(set(counts)) > 3
    assert counts[-1] == count_reasoning(server)


async def test_the_reasoning_of_a_slow_reader_is_split_off_too(
    server: FakeServer,
) -> None:
    """The engine joins tokens for a slow reader, here a whole answer in one delta."""
    engine = server.state.engine
    messages = [{"role": "user", "content": "Hello"}]
    num_tokens = len(server.answer_ids)
    async with engine.open_chat(messages, max_tokens=num_tokens) as stream:
        while len(server.device.plans) < num_tokens:
            await trio.sleep(0.001)
        deltas = [delta async for delta in stream]
    assert len(deltas) < 4
    assert "".join(delta.reasoning for delta in deltas) == REASONING
    assert "".join(delta.text for delta in deltas) == CONTENT
    counted = sum(delta.num_reasoning_tokens for delta in deltas)
    assert counted == count_reasoning(server)


async def test_the_reasoning_of_each_of_n_answers_is_split_off(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    answer = (await client.post(CHAT_PATH, json=ask(server, n=3))).json()
    messages = [choice["message"] for choice in answer["choices"]]
    assert [message["reasoning"] for message in messages] == [REASONING] * 3
    assert [message["content"] for message in messages] == [CONTENT] * 3
    details = answer["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": 3 * count_reasoning(server)}


async def test_unwanted_reasoning_is_counted_but_not_shown(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    body = ask(server, include_reasoning=False)
    answer = (await client.post(CHAT_PATH, json=body)).json()
    message = answer["choices"][0]["message"]
    assert message["content"] == CONTENT
    assert "reasoning" not in message
    details = {"reasoning_tokens": count_reasoning(server)}
    assert answer["usage"]["completion_tokens_details"] == details
    assert answer["usage"]["completion_tokens"] == len(server.answer_ids)
    events = await read_events(client, body | {"stream": True})
    first, *deltas = list_deltas(events)
    assert all(delta.keys() == {"content"} for delta in deltas)
    assert all(delta["content"] for delta in deltas[:-1])
    assert "".join(delta["content"] for delta in deltas) == CONTENT


async def test_token_ids_come_with_the_chunk_of_their_tokens(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    body = ask(server, stream=True, return_token_ids=True)
    choices = [event["choices"][0] for event in await read_events(client, body)]
    ids = [token_id for choice in choices for token_id in choice.get("token_ids", ())]
    assert tuple(ids) == server.answer_ids
    whole = (await client.post(CHAT_PATH, json=body | {"stream": False})).json()
    assert tuple(whole["choices"][0]["token_ids"]) == server.answer_ids


async def test_an_answer_may_end_while_it_reasons(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    body = ask(server, max_tokens=count_reasoning(server) - 8)
    choice = (await client.post(CHAT_PATH, json=body)).json()["choices"][0]
    assert REASONING.startswith(choice["message"]["reasoning"])
    assert choice["message"]["content"] == ""
    events = await read_events(client, body | {"stream": True})
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    text = "".join(delta.get("reasoning", "") for delta in list_deltas(events))
    assert text == choice["message"]["reasoning"]


async def test_a_stop_string_is_found_in_the_reasoning_too(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    body = ask(server, stop="dog")
    whole = (await client.post(CHAT_PATH, json=body)).json()["choices"][0]
    events = await read_events(client, body | {"stream": True})
    for choice in (whole, events[-1]["choices"][0]):
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "dog")
    text = "".join(delta.get("reasoning", "") for delta in list_deltas(events))
    assert text == whole["message"]["reasoning"] == "Hm, the "


@pytest.mark.server(answer="Yes.")
async def test_an_answer_without_reasoning_says_so(client: httpx.AsyncClient) -> None:
    answer = (await client.post(CHAT_PATH, json=CHAT | {"max_tokens": 3})).json()
    assert answer["choices"][0]["message"]["reasoning"] is None
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(
            *(CHAT_PATH, CHAT),
            marks=pytest.mark.server(render=RenderConfig(reasoning_parser="none")),
        ),
        ("/v1/completions", {"prompt": "Hello"}),
    ],
)
async def test_completions_and_answers_without_a_parser_are_not_split(
    server: FakeServer, client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    body = body | {"max_tokens": len(server.answer_ids)}
    answer = (await client.post(path, json=body)).json()
    [choice] = answer["choices"]
    message = choice.get("message", {"content": choice.get("text")})
    assert message["content"] == ANSWER
    assert "reasoning" not in message
    assert "completion_tokens_details" not in answer["usage"]


def end_prompt(text: str) -> pytest.MarkDecorator:
    """Let the template end each prompt with a text."""
    return pytest.mark.server(
        chat_template=CHATML_TEMPLATE + "{{ " + repr(text) + " }}"
    )


@pytest.mark.server(answer="Hm.</think>\nYes.")
@pytest.mark.parametrize(
    ("reasoning", "content"),
    [
        pytest.param("Hm.", "Yes.", marks=end_prompt("<think>\n")),
        pytest.param(
            *(None, "Hm.</think>\nYes."), marks=end_prompt("<think>\n\n</think>\n\n")
        ),
        (None, "Hm.</think>\nYes."),
    ],
)
async def test_the_template_tells_whether_the_answer_begins_inside(
    server: FakeServer, client: httpx.AsyncClient, reasoning: str | None, content: str
) -> None:
    # The words of a user do not count.
    body = ask(server, messages=[{"role": "user", "content": "<think>"}])
    answer = (await client.post(CHAT_PATH, json=body)).json()
    message = answer["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == (reasoning, content)


@pytest.mark.parametrize(
    "is_open",
    [
        False,
        pytest.param(True, marks=end_prompt("<think>\n")),
        # The template has ended the reasoning.
        pytest.param(None, marks=end_prompt("<think></think>")),
    ],
)
async def test_a_budget_reaches_the_sampler_with_the_models_tags(
    server: FakeServer, client: httpx.AsyncClient, is_open: bool | None
) -> None:
    await client.post(CHAT_PATH, json=ask(server, thinking_token_budget=7))
    tags = server.state.engine.renderer.reasoning
    [start] = list_starts(server)
    budget = None
    if is_open is not None:
        budget = ReasoningBudget(
            num_tokens=7,
            start_token_ids=tags.start_token_ids,
            end_token_ids=tags.end_token_ids,
            is_open=is_open,
        )
    assert start.sampling.reasoning_budget == budget


@pytest.mark.parametrize(
    "reasons",
    [
        {-1: "must be between", 2**31: "must be between", 1.5: "expected int"},
        pytest.param(
            {9: "--reasoning-parser"},
            marks=pytest.mark.server(render=RenderConfig(reasoning_parser="none")),
        ),
    ],
)
async def test_a_wrong_budget_is_refused_by_name(
    server: FakeServer, client: httpx.AsyncClient, reasons: dict[float, str]
) -> None:
    bodies = [
        *((CHAT_PATH, CHAT, budget, reason) for budget, reason in reasons.items()),
        ("/v1/completions", {"prompt": "Hello"}, 9, "not supported"),
    ]
    for path, body, budget, reason in bodies:
        fields = body | {"thinking_token_budget": budget}
        response = await client.post(path, json=fields)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == "thinking_token_budget"
        assert reason in error["message"]
    assert not server.device.plans


async def test_a_program_cannot_give_a_completion_a_budget(server: FakeServer) -> None:
    with pytest.raises(InvalidParameter, match="thinking_token_budget"):
        async with server.state.engine.open_completion("Hi", thinking_token_budget=9):
            raise AssertionError("it was taken")


THOUGHTS_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:"
    "{% if m.reasoning_content is string %}[{{ m.reasoning_content }}]{% endif %}"
    "{% if m.reasoning is defined %}({{ m.reasoning }}){% endif %}"
    "{{ m.content }};{% endfor %}"
)


@pytest.mark.server(chat_template=THOUGHTS_TEMPLATE)
async def test_earlier_reasoning_reaches_the_template_by_both_names(
    server: FakeServer,
) -> None:
    renderer = server.state.engine.renderer
    rows: list[tuple[dict[str, object], str]] = [
        ({"reasoning": "hm"}, "assistant:[hm](hm)yes;"),
        ({"reasoning_content": "hm"}, "assistant:[hm](hm)yes;"),
        ({"reasoning": "a", "reasoning_content": "b"}, "assistant:[b](a)yes;"),
        ({"reasoning": None, "reasoning_content": None}, "assistant:yes;"),
        ({"reasoning": ""}, "assistant:[]()yes;"),
        ({}, "assistant:yes;"),
    ]
    for fields, prompt in rows:
        message = {"role": "assistant", "content": "yes", **fields}
        body = decode_chat(json.dumps({"messages": [message]}).encode())
        for messages in ([message], MessageMappings(body.messages)):
            assert (await renderer.render_chat(messages)).text == prompt, fields


async def test_reasoning_that_is_not_text_is_refused_by_name(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    for name in ("reasoning", "reasoning_content"):
        messages = [{"role": "assistant", "content": "yes", name: 5}]
        response = await client.post(CHAT_PATH, json=CHAT | {"messages": messages})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == f"messages[0].{name}"
        with pytest.raises(InvalidParameter, match=rf"messages\[0\].{name}"):
            await server.state.engine.renderer.render_chat(messages)
