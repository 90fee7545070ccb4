"""Ollama's API over real sockets, without a client of its own."""

from __future__ import annotations

import base64
import datetime
import io
import json
from pathlib import Path
from typing import Any

from PIL import Image
import httpx2 as httpx
import pytest
import trio

from trioserve.config import HttpConfig, RenderConfig
from trioserve.errors import EngineDied
from trioserve.testing.processors import save_tiny_processor
from trioserve.testing.server import (
    FakeServer,
    open_fake_pooling_server,
    open_fake_server,
)
from trioserve.testing.tokenizer import IM_END

from ..seen import list_grammars, list_starts, read_prompt

REASONING = "Hm, the dog sleeps."
TEXT = "The quick brown fox."
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "sea"}}\n</tool_call>'
ASK: dict[str, Any] = {
    "model": "fake",
    "messages": [{"role": "user", "content": "Hello"}],
}
PROMPT: dict[str, Any] = {"model": "fake", "prompt": "Hello"}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
COUNTS = ("prompt_eval_count", "eval_count")
DURATIONS = ("total_duration", "prompt_eval_duration", "eval_duration")

pytestmark = pytest.mark.server(answer=TEXT, eos_token=IM_END)

thinks = pytest.mark.server(
    answer=f"<think>\n{REASONING}\n</think>\n\n{TEXT}",
    render=RenderConfig(reasoning_parser="qwen3"),
)


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    answer = await client.post(f"/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


async def stream(client: httpx.AsyncClient, path: str, **body: Any) -> list[Any]:
    answer = await client.post(f"/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert answer.text.endswith("}\n")
    return [json.loads(line) for line in answer.text.splitlines()]


async def refuse(client: httpx.AsyncClient, path: str, **body: Any) -> tuple[int, str]:
    answer = await client.post(f"/api/{path}", json=body)
    assert list(answer.json()) == ["error"], answer.text
    return answer.status_code, answer.json()["error"]


async def test_an_answer_is_streamed_by_default(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    *lines, last = await stream(client, "chat", **ASK)
    assert [line["done"] for line in lines] == [False] * len(lines)
    assert "".join(line["message"]["content"] for line in lines) == TEXT
    assert all(line["message"]["role"] == "assistant" for line in lines)
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"]) == (True, "stop")
    whole = await post(client, "chat", **ASK, stream=False)
    assert whole["message"] == {"role": "assistant", "content": TEXT}
    assert [whole[name] for name in COUNTS] == [last[name] for name in COUNTS]
    assert whole["eval_count"] == len(server.answer_ids) + 1
    for answer in (last, whole):
        assert all(answer[name] > 0 for name in DURATIONS)
        assert answer["load_duration"] == 0
        parts = answer["prompt_eval_duration"] + answer["eval_duration"]
        assert answer["total_duration"] >= parts
        at = datetime.datetime.fromisoformat(answer["created_at"])
        assert at.utcoffset() == datetime.timedelta(0)


async def test_a_prompt_is_a_chat_unless_it_is_raw(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    *lines, last = await stream(client, "generate", **PROMPT, system="Be kind.")
    assert "".join(line["response"] for line in lines) == TEXT
    assert (last["response"], last["done_reason"]) == ("", "stop")
    prompt = read_prompt(server)
    assert prompt.startswith("<|im_start|>system\nBe kind.<|im_end|>")
    assert "<|im_start|>user\nHello<|im_end|>" in prompt
    whole = await post(client, "generate", **PROMPT, raw=True, stream=False)
    assert read_prompt(server) == "Hello"
    assert whole["response"] == TEXT


async def test_options_reach_the_device(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    options = {
        **{"temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "seed": 3},
        **{"presence_penalty": 0.5, "frequency_penalty": 0.25, "repeat_penalty": 1.2},
        **{"num_predict": 2, "num_ctx": 256},
    }
    wanted = {**options, "repetition_penalty": 1.2, "max_tokens": 2}
    for path, body in (("chat", ASK), ("generate", PROMPT), ("generate", PROMPT)):
        last = (await stream(client, path, **body, options=options))[-1]
        assert (last["eval_count"], last["done_reason"]) == (2, "length")
    await post(client, "generate", **PROMPT, raw=True, options=options, stream=False)
    for start in list_starts(server):
        for name in set(wanted) - {"repeat_penalty", "num_predict", "num_ctx"}:
            assert getattr(start.sampling, name) == wanted[name], name
    for limit in (-1, -2, 10_000):
        answer = await post(
            client, "chat", **ASK, stream=False, options={"num_predict": limit}
        )
        assert answer["message"]["content"] == TEXT, limit
    answer = await post(
        client, "chat", **ASK, stream=False, options={"stop": ["brown"], "seed": -1}
    )
    assert answer["message"]["content"] == "The quick "
    assert answer["done_reason"] == "stop"
    seeds = {start.sampling.seed for start in list_starts(server)[-4:]}
    assert -1 not in seeds


async def test_options_may_stand_beside_the_model(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    """The provider of the Vercel AI SDK sends three of them there."""
    beside = {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 3}
    for options, wanted in (
        ({}, (0.5, 0.9, 3)),
        ({"temperature": 0.25, "num_predict": 2}, (0.25, 0.9, 2)),
    ):
        for path, body in (("chat", ASK), ("generate", PROMPT | {"raw": True})):
            await post(client, path, **body, **beside, options=options, stream=False)
            sampling = list_starts(server)[-1].sampling
            found = (sampling.temperature, sampling.top_p, sampling.max_tokens)
            assert found == wanted, path
    for fields, name in (
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1, "options": {"temperature": -1}}, "options.temperature"),
        ({"top_p": 2, "options": {"temperature": 1}}, "top_p"),
    ):
        status, error = await refuse(client, "chat", **ASK, **fields)
        assert status == 400 and error.startswith(f"{name}: "), error


@pytest.mark.server(eos_token=None)
async def test_a_long_answer_ends_where_the_context_does(
    client: httpx.AsyncClient,
) -> None:
    for limit in (-1, 10_000):
        answer = await post(
            client, "chat", **ASK, stream=False, options={"num_predict": limit}
        )
        assert answer["done_reason"] == "length"
        assert answer["prompt_eval_count"] + answer["eval_count"] == 256


@thinks
async def test_thinking_is_a_field_of_its_own(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    whole = await post(client, "chat", **ASK, stream=False)
    assert whole["message"]["thinking"] == REASONING
    assert whole["message"]["content"] == TEXT
    lines = await stream(client, "generate", **PROMPT, think="high")
    assert "".join(line.get("thinking", "") for line in lines) == REASONING
    assert "".join(line["response"] for line in lines) == TEXT
    await post(client, "chat", **ASK, stream=False, think=True)
    await post(client, "chat", **ASK, stream=False, think=False)
    budgets = [start.sampling.reasoning_budget for start in list_starts(server)]
    assert budgets[:3] == [None] * 3 and budgets[3].num_tokens == 0
    shown = await post(client, "show", model="fake")
    assert "thinking" in shown["capabilities"]


async def test_a_model_that_does_not_think_is_not_asked_to(
    client: httpx.AsyncClient,
) -> None:
    for think in (True, "low"):
        status, error = await refuse(client, "chat", **ASK, think=think)
        assert status == 400 and error.startswith("think is not supported")
    whole = await post(client, "chat", **ASK, stream=False, think=False)
    assert whole["message"] == {"role": "assistant", "content": TEXT}


@pytest.mark.server(
    answer=f"I look. {CALL}\n{CALL}",
    render=RenderConfig(tool_call_parser="hermes"),
    max_model_len=1024,
)
async def test_calls_come_whole(server: FakeServer, client: httpx.AsyncClient) -> None:
    body = ASK | {"tools": TOOLS}
    whole = await post(client, "chat", **body, stream=False)
    assert whole["done_reason"] == "stop"
    functions = [call["function"] for call in whole["message"]["tool_calls"]]
    assert functions == [
        {"index": index, "name": "look", "arguments": {"at": "sea"}} for index in (0, 1)
    ]
    lines = [line["message"] for line in await stream(client, "chat", **body)]
    calls = [call for line in lines for call in line.get("tool_calls", ())]
    assert [call["function"] for call in calls] == functions
    assert len({call["id"] for call in calls}) == 2
    assert "".join(line["content"] for line in lines).strip() == "I look."
    # A grammar holds a model to a call that a client forces.
    await post(client, "chat", **body, stream=False, tool_choice="required")
    *free, forced = list_grammars(server)
    assert not any(free) and "look" in (forced or "")
    status, error = await refuse(client, "chat", **ASK, tool_choice="required")
    assert status == 400 and error.startswith("tool_choice: is only taken with tools")
    # The answer ends within the last call.
    options = {"num_predict": whole["eval_count"] - 20}
    cut = await post(client, "chat", **body, stream=False, options=options)
    calls = cut["message"]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == [{"at": "sea"}, {}]
    assert cut["done_reason"] == "length"


async def test_a_form_reaches_the_device_as_a_grammar(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    schema = {"type": "object", "properties": {"name_of_it": {"type": "string"}}}
    await post(client, "chat", **ASK, stream=False, format="json")
    await post(client, "chat", **ASK, stream=False, format=schema)
    await post(client, "generate", **PROMPT, stream=False, format=schema)
    await post(client, "generate", **PROMPT, stream=False, format=schema, raw=True)
    first, *others = list_grammars(server)
    assert first
    assert all(each and "name_of_it" in each for each in others)
    status, error = await refuse(client, "chat", **ASK, format={"type": 5})
    assert status == 400 and error.startswith("format: ")


async def test_a_request_without_a_prompt_loads_the_model(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    for path, body in (
        ("chat", {"model": "fake", "messages": []}),
        ("chat", {"model": "fake:latest", "keep_alive": "5m"}),
        ("generate", {"model": "fake"}),
        ("generate", {"model": "fake", "prompt": "", "keep_alive": -1}),
    ):
        answer = await post(client, path, **body)
        assert (answer["done"], answer["done_reason"]) == (True, "load")
        assert answer["model"] == body["model"]
        status, error = await refuse(client, path, **body | {"keep_alive": 0})
        assert status == 400 and error.startswith("keep_alive is not supported")
    # An answer may end when it likes.
    await post(client, "chat", **ASK, stream=False, keep_alive=0)
    assert len(list_starts(server)) == 1


async def test_errors_have_one_text(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    for path, body in (("chat", ASK), ("generate", PROMPT), ("show", {"model": "x"})):
        status, error = await refuse(client, path, **body | {"model": "x"})
        assert (status, error) == (404, "model 'x' not found; this server has 'fake'")
    answer = await client.post("/api/pull", json={"model": "x"})
    assert answer.status_code == 404 and "no such path" in answer.json()["error"]
    answer = await client.get("/api/chat")
    assert answer.status_code == 405 and "POST" in answer.json()["error"]
    status, error = await refuse(client, "embed", model="fake", input="a")
    assert status == 400 and "does not pool" in error
    long = {"role": "user", "content": "Hello. " * 200}
    status, error = await refuse(client, "chat", **ASK | {"messages": [long]})
    assert status == 400 and "maximum context length is 256" in error
    status, same = await refuse(
        client, "generate", model="fake", prompt=long["content"]
    )
    assert status == 400 and same == error
    for options, name in (({"top_p": 2}, "top_p"), ({"num_ctx": 257}, "num_ctx")):
        status, error = await refuse(client, "chat", **ASK, options=options)
        assert status == 400 and error.startswith(f"options.{name}: ")
    image = {"role": "user", "content": "Hi", "images": ["AAAA"]}
    status, error = await refuse(client, "chat", **ASK | {"messages": [image]})
    assert status == 400 and error.startswith("messages[0].images[0] is not supported")


async def test_a_stream_that_fails_ends_with_an_error(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    async with client.stream("POST", "/api/chat", json=ASK) as answer:
        lines = []
        async for line in answer.aiter_lines():
            lines.append(json.loads(line))
            server.engine.close_requests(EngineDied())
    assert lines[0]["message"]["content"]
    assert lines[-1] == {"error": str(EngineDied())}


async def test_a_silent_stream_gets_spaces(tokenizer_folder: Path) -> None:
    """An empty line would be no JSON."""
    with trio.fail_after(30):
        async with (
            open_fake_server(
                tokenizer_folder,
                http=HttpConfig(sse_keepalive=0.05),
                answer=TEXT,
                eos_token=IM_END,
                step_seconds=0.3,
            ) as server,
            httpx.AsyncClient(base_url=server.url, timeout=30) as client,
        ):
            body = ASK | {"options": {"num_predict": 2}}
            answer = await client.post("/api/chat", json=body)
            assert " {" in answer.text
            lines = [json.loads(line) for line in answer.text.splitlines()]
            assert lines[-1]["done_reason"] == "length"


async def test_streams_of_lines_are_not_taken_up_again(tokenizer_folder: Path) -> None:
    with trio.fail_after(30):
        async with (
            open_fake_server(
                tokenizer_folder,
                http=HttpConfig(resume_seconds=10),
                answer=TEXT,
                eos_token=IM_END,
            ) as server,
            httpx.AsyncClient(base_url=server.url) as client,
        ):
            lines = await stream(client, "chat", **ASK)
            assert "".join(line["message"]["content"] for line in lines) == TEXT


async def test_the_model_is_described(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    [listed] = (await client.get("/api/tags")).json()["models"]
    assert listed["name"] == listed["model"] == "fake"
    assert len(listed["digest"]) == 64
    [loaded] = (await client.get("/api/ps")).json()["models"]
    assert (loaded["context_length"], loaded["size_vram"]) == (256, 0)
    assert loaded["digest"] == listed["digest"]
    for named in ({"model": "fake:latest"}, {"name": "fake"}):
        shown = await post(client, "show", **named, verbose=True)
        facts = shown["model_info"]
        family = facts["general.architecture"]
        assert family == shown["details"]["family"] == "fake"
        assert facts[f"{family}.context_length"] == 256
        assert "im_start" in shown["template"]
        assert "completion" in shown["capabilities"]
    version = (await client.get("/api/version")).json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)
    # Tools look whether a server is there.
    assert (await client.head("/")).status_code == 200


async def test_a_body_need_not_be_declared_unless_a_page_sends_it(
    client: httpx.AsyncClient,
) -> None:
    """Ollama's manual and litellm do not declare it, and browsers tell the origin."""
    content = json.dumps(ASK | {"stream": False}).encode()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for fields in ({}, form, {"Content-Type": "text/plain"}):
        answer = await client.post("/api/chat", content=content, headers=fields)
        assert answer.json()["message"]["content"] == TEXT, fields
        page = {**fields, "Origin": "https://other.example"}
        answer = await client.post("/api/chat", content=content, headers=page)
        assert answer.status_code == 415, fields
        answer = await client.post(
            "/v1/chat/completions", content=content, headers=fields
        )
        assert answer.status_code == 415, fields


async def test_texts_are_embedded(tokenizer_folder: Path) -> None:
    with trio.fail_after(30):
        async with (
            open_fake_pooling_server(
                tokenizer_folder, task="embed", num_outputs=4
            ) as server,
            httpx.AsyncClient(base_url=server.url) as client,
        ):
            answer = await post(client, "embed", model="fake", input=["a", "The fox."])
            assert [len(vector) for vector in answer["embeddings"]] == [4, 4]
            assert answer["prompt_eval_count"] > 0 and answer["total_duration"] > 0
            one = await post(client, "embed", model="fake:latest", input="a")
            assert one["embeddings"] == answer["embeddings"][:1]
            older = await post(client, "embeddings", model="fake", prompt="a")
            assert len(older["embedding"]) == 4
            for body in ({"input": ""}, {"input": []}, {}):
                empty = await post(client, "embed", model="fake", **body)
                assert empty["embeddings"] == []
            empty = await post(client, "embeddings", model="fake")
            assert empty == {"embedding": []}
            long = "fox " * 1000
            cut = await post(client, "embed", model="fake", input=long)
            assert len(cut["embeddings"]) == 1
            status, error = await refuse(
                client, "embed", model="fake", input=long, truncate=False
            )
            assert status == 400 and "maximum context length" in error
            status, error = await refuse(client, "chat", **ASK)
            assert status == 400 and "does not generate" in error
            shown = await post(client, "show", model="fake")
            assert shown["capabilities"] == ["embedding"]


@pytest.mark.slow
async def test_an_image_is_the_same_as_in_a_chat(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    url = {"url": f"data:image/png;base64,{data}"}
    parts = [{"type": "image_url", "image_url": url}, {"type": "text", "text": "What?"}]
    chat = {"messages": [{"role": "user", "content": parts}], "max_tokens": 2}
    options = {"options": {"num_predict": 2}, "stream": False}
    folder = save_tiny_processor("qwen2_vl", tmp_path)
    async with (
        open_fake_server(folder, takes_images=True, max_model_len=1024) as server,
        httpx.AsyncClient(base_url=server.url, timeout=20) as client,
    ):
        await client.post("/v1/chat/completions", json=chat)
        message = {"role": "user", "content": "What?", "images": [data]}
        await post(client, "chat", model="fake", messages=[message], **options)
        await post(
            client, "generate", model="fake", prompt="What?", images=[data], **options
        )
        prompts = [start.prompt_token_ids for start in list_starts(server)]
        assert len(prompts) == 3 and len({*prompts}) == 1
        message |= {"images": [data, "QUJD"]}
        status, error = await refuse(
            client, "chat", model="fake", messages=[message], **options
        )
        assert status == 400 and error.startswith("messages[0].images[1]: ")
        shown = await post(client, "show", model="fake")
        assert "vision" in shown["capabilities"]
