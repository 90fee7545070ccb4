"""Small reports that clients ask for: echoes, token ids of echoes, times, tokenizers."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest
from raw_http import read_events

from trioserve.config import HttpConfig
from trioserve.testing.server import FakeServer
from trioserve.testing.tokenizer import CHATML_TEMPLATE, IM_END

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"
BEGUN: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "Who?"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "It"},
                {"type": "text", "text": "is "},
            ],
        },
    ],
    "continue_final_message": True,
    "echo": True,
    "max_tokens": 4,
}
BODIES: dict[str, dict[str, Any]] = {
    CHAT_PATH: {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
    COMPLETION_PATH: {"prompt": "Hello", "max_tokens": 4},
}


pytestmark = pytest.mark.server(http=HttpConfig(enable_tokenizer_info_endpoint=True))


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def stream(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> list[Any]:
    """Return the chunks of a stream."""
    *chunks, done = read_events(
        (await client.post(path, json=body | {"stream": True})).text
    )
    assert done == "[DONE]"
    return chunks


async def test_an_echo_begins_the_content_of_a_chat(client: httpx.AsyncClient) -> None:
    plain = await ask(client, CHAT_PATH, BEGUN | {"echo": False})
    answer = plain["choices"][0]["message"]["content"]
    echoed = await ask(client, CHAT_PATH, BEGUN | {"n": 2})
    for choice in echoed["choices"]:
        assert choice["message"]["content"] == f"It\nis {answer}"
    assert echoed["usage"]["completion_tokens"] == 8


async def test_a_streamed_echo_comes_behind_the_role(client: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await stream(client, CHAT_PATH, BEGUN | {"stream_options": options})
    role, echo, *_ = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert role["role"] == "assistant"
    assert echo == {"content": "It\nis "}
    assert chunks[1]["usage"]["completion_tokens"] == 0


async def test_nothing_is_echoed_of_another_role(client: httpx.AsyncClient) -> None:
    body = BODIES[CHAT_PATH]
    plain = await ask(client, CHAT_PATH, body)
    echoed = await ask(client, CHAT_PATH, body | {"echo": True})
    assert (
        echoed["choices"][0]["message"]["content"]
        == plain["choices"][0]["message"]["content"]
    )
    first, second, *_ = await stream(client, CHAT_PATH, body | {"echo": True})
    assert second["choices"][0]["delta"]["content"]


@pytest.mark.parametrize("streams", [False, True])
async def test_the_token_ids_of_an_echo_have_the_prompts(
    client: httpx.AsyncClient, server: FakeServer, streams: bool
) -> None:
    body = BODIES[COMPLETION_PATH] | {"echo": True, "return_token_ids": True}
    prompt = (await ask(client, "/tokenize", {"prompt": "Hello"}))["tokens"]
    if streams:
        chunks = await stream(client, COMPLETION_PATH, body)
        choices = [chunk["choices"][0] for chunk in chunks]
        token_ids = [i for choice in choices for i in choice.get("token_ids", [])]
    else:
        choices = (await ask(client, COMPLETION_PATH, body))["choices"]
        token_ids = choices[0]["token_ids"]
    assert choices[0]["prompt_token_ids"] == prompt
    assert token_ids == [*prompt, *server.answer_ids[:4]]
    text = (await ask(client, "/detokenize", {"tokens": token_ids}))["prompt"]
    assert text == "".join(choice["text"] for choice in choices)


@pytest.mark.parametrize(("path", "streams"), [*zip(BODIES, (False, True))])
async def test_times_are_reported_on_request(
    client: httpx.AsyncClient, path: str, streams: bool
) -> None:
    body = BODIES[path] | {"return_metrics": True}
    if streams:
        options = {"stream_options": {"include_usage": True}}
        *chunks, last = await stream(client, path, body | options)
        assert not any("metrics" in chunk for chunk in chunks)
        metrics = last["metrics"]
    else:
        metrics = (await ask(client, path, body))["metrics"]
        assert "metrics" not in await ask(client, path, BODIES[path])
    assert metrics.keys() == {
        *("queue_time_ms", "time_to_first_token_ms", "generation_time_ms"),
        *("mean_itl_ms", "tokens_per_second"),
    }
    assert metrics["queue_time_ms"] >= 0
    assert metrics["time_to_first_token_ms"] > 0
    assert metrics["generation_time_ms"] > 0
    assert metrics["mean_itl_ms"] == pytest.approx(metrics["generation_time_ms"] / 3)
    seconds = metrics["time_to_first_token_ms"] + metrics["generation_time_ms"]
    assert metrics["tokens_per_second"] == pytest.approx(4000 / seconds)


@pytest.mark.parametrize("path", BODIES)
async def test_times_of_a_stream_need_a_chunk_for_them(
    client: httpx.AsyncClient, path: str
) -> None:
    body = BODIES[path] | {"return_metrics": True, "stream": True}
    response = await client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "return_metrics"


async def test_the_tokenizer_is_described(client: httpx.AsyncClient) -> None:
    answer = await client.get("/tokenizer_info")
    assert answer.status_code == 200
    info = answer.json()
    assert info["eos_token"] == IM_END
    assert "bos_token" not in info
    assert info["chat_template"] == CHATML_TEMPLATE
    assert info["model_max_length"] == 256
    assert "Tokenizer" in info["tokenizer_class"]


@pytest.mark.server(http=HttpConfig())
async def test_a_tokenizer_is_only_described_if_an_option_says_so(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.get("/tokenizer_info")
    assert answer.status_code == 404
    assert "--enable-tokenizer-info-endpoint" in answer.json()["error"]["message"]
