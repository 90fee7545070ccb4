"""An answer that repeats itself ends early, and each API says why."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import openai
import pytest

from trioserve.testing.server import FakeServer
from trioserve.types.repetition import RepetitionDetection

MESSAGES: Any = [{"role": "user", "content": "a"}]
RULE = RepetitionDetection(max_pattern_size=64, min_count=3)
FIELDS = {"max_pattern_size": 64, "min_count": 2}
OFF: dict[str, int] = {}


pytestmark = [
    # The model writes one sentence again and again.
    pytest.mark.server(stop_repetition=RULE),
    # The client leaves generators of its HTTP library to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
in_both_places = pytest.mark.parametrize(
    "place",
    [
        pytest.param("here"),
        pytest.param("process", marks=pytest.mark.server(is_remote=True)),
    ],
)


async def post(server: FakeServer, path: str, **body: object) -> Any:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        lines = [line for line in answer.text.splitlines() if line[:6] == "data: "]
        return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]
    return answer.json()


@in_both_places
async def test_a_request_decides_and_else_the_server(
    place: str, server: FakeServer
) -> None:
    size = len(server.answer_ids)
    rows: list[tuple[dict[str, Any], int, str]] = [
        ({}, 3, "repetition"),
        ({"repetition_detection": FIELDS}, 2, "repetition"),
        ({"repetition_detection": OFF}, 4, "length"),
        ({"ignore_eos": True}, 4, "length"),
        ({"ignore_eos": True, "repetition_detection": FIELDS}, 2, "repetition"),
    ]
    for fields, times, reason in rows:
        body = {"prompt": "a", "n": 2, "max_tokens": 4 * size, **fields}
        answer = await post(server, "/v1/completions", **body)
        for choice in answer["choices"]:
            assert (choice["finish_reason"], choice["stop_reason"]) == (reason, None)
            assert choice["text"] == times * server.answer, fields
        assert answer["usage"]["completion_tokens"] == 2 * times * size


@in_both_places
async def test_a_stop_string_in_the_last_text_counts(
    place: str, server: FakeServer
) -> None:
    body = {"prompt": "a", "max_tokens": 200, "repetition_detection": FIELDS}
    half = server.answer.rpartition("lazy")[2]
    stop = half + server.answer[:9]
    answer = await post(server, "/v1/completions", **body, stop=stop)
    assert answer["choices"][0]["finish_reason"] == "stop"
    # The text that might have become the stop string is not lost.
    stop = half + "jumps"
    answer = await post(server, "/v1/completions", **body, stop=stop)
    assert answer["choices"][0]["finish_reason"] == "repetition"
    assert answer["choices"][0]["text"] == 2 * server.answer


async def test_the_official_client_takes_the_reason(
    server: FakeServer, openai_client: openai.AsyncOpenAI
) -> None:
    async with openai_client as client:
        whole = await client.chat.completions.create(
            model="fake", messages=MESSAGES, max_tokens=200
        )
        assert str(whole.choices[0].finish_reason) == "repetition"
        stream = await client.chat.completions.create(
            model="fake", messages=MESSAGES, max_tokens=200, stream=True
        )
        chunks = [chunk async for chunk in stream]
        assert str(chunks[-1].choices[0].finish_reason) == "repetition"
        response = await client.responses.create(model="fake", input="a")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert str(response.incomplete_details.reason) == "repetition"
    assert response.output_text == 3 * server.answer


async def test_messages_and_streams_of_responses_say_it(server: FakeServer) -> None:
    chat = {"messages": MESSAGES, "max_tokens": 200}
    message = await post(server, "/v1/messages", **chat)
    assert message["stop_reason"] == "repetition"
    events = await post(server, "/v1/messages", **chat, stream=True)
    [end] = [each for each in events if each["type"] == "message_delta"]
    assert end["delta"]["stop_reason"] == "repetition"
    events = await post(server, "/v1/responses", input="a", stream=True)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "repetition"}


async def test_metrics_count_it(server: FakeServer) -> None:
    await post(server, "/v1/completions", prompt="a", max_tokens=200)
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        text = (await client.get("/metrics")).text
    [line] = [each for each in text.splitlines() if '="repetition"' in each]
    assert line.startswith("trioserve_request_success_total")
    assert line.endswith(" 1") or line.endswith(" 1.0")
