"""The API over real sockets, with a fake device: fields, streams, errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2 as httpx
import pytest
import raw_http
import trio

from trioserve.config import HttpConfig
from trioserve.errors import EngineDied
from trioserve.render.workers.threads import RendererWorkers
from trioserve.testing.server import FakeServer, open_fake_server

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "Hello"}]}
CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"

# One error for each status.
ERROR_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    405: "MethodNotAllowed",
    415: "UnsupportedMediaType",
}

PATHS = "There is no such path; GET /openapi.json lists all paths."
MEANT = f"{PATHS} You may mean "

Post = Callable[..., Awaitable[httpx.Response]]


async def stream(client: httpx.AsyncClient, path: str, body: object) -> list[Any]:
    """Return the decoded data of all events; [DONE] stays a string."""
    async with client.stream("POST", path, json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in response.aiter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    data = [line.removeprefix("data: ") for line in lines]
    return [part if part == "[DONE]" else json.loads(part) for part in data]


def answer_of(server: FakeServer, num_tokens: int) -> str:
    """Return the text of the fake's first tokens."""
    renderer = server.state.engine.renderer
    ids = [server.answer_ids[i % len(server.answer_ids)] for i in range(num_tokens)]
    return b"".join(map(renderer.token_bytes, ids)).decode()


async def test_a_chat_is_answered_whole(
    client: httpx.AsyncClient, server: FakeServer
) -> None:
    response = await client.post(CHAT_PATH, json=CHAT | {"max_tokens": 6})
    assert response.status_code == 200
    answer = response.json()
    choice = answer["choices"][0]
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "fake"
    assert answer["system_fingerprint"] == "fp_fake"
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == answer_of(server, 6)
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 6
    prompt_tokens = answer["usage"]["prompt_tokens"]
    assert answer["usage"]["total_tokens"] == prompt_tokens + 6


async def test_a_streamed_chat_begins_with_the_role_and_ends_with_done(
    client: httpx.AsyncClient, server: FakeServer
) -> None:
    events = await stream(client, CHAT_PATH, CHAT | {"max_tokens": 6, "stream": True})
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert all(chunk["system_fingerprint"] == "fp_fake" for chunk in chunks)
    assert all("usage" not in chunk for chunk in chunks)
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == answer_of(server, 6)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]


@pytest.mark.parametrize(
    ("path", "body", "has_last"),
    [(CHAT_PATH, CHAT, True), (COMPLETION_PATH, {"prompt": "Hi"}, False)],
)
async def test_continuous_usage_counts_the_tokens_so_far(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], has_last: bool
) -> None:
    options = {"include_usage": has_last, "continuous_usage_stats": True}
    body = body | {"max_tokens": 3, "stream": True, "stream_options": options}
    *events, done = await stream(client, path, body)
    assert done == "[DONE]"
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == 3
    assert [bool(event["choices"]) for event in events].count(False) == has_last
    # A chat's event with the role comes before the first token.
    assert path != CHAT_PATH or counts[0] == 0


async def test_n_choices_are_streamed_side_by_side(
    client: httpx.AsyncClient, server: FakeServer
) -> None:
    events = await stream(
        client, CHAT_PATH, CHAT | {"max_tokens": 5, "n": 3, "stream": True}
    )
    texts = ["", "", ""]
    for event in events[:-1]:
        choice = event["choices"][0]
        texts[choice["index"]] += choice["delta"]["content"]
    assert texts == [answer_of(server, 5)] * 3


@pytest.mark.parametrize(("streams", "includes"), [(False, True), (True, False)])
async def test_a_stop_string_ends_the_text_across_tokens(
    client: httpx.AsyncClient, server: FakeServer, streams: bool, includes: bool
) -> None:
    body = CHAT | {
        "max_tokens": 50,
        "stop": ["wn fox j"],
        "include_stop_str_in_output": includes,
        "stream": streams,
    }
    if streams:
        events = await stream(client, CHAT_PATH, body)
        deltas = [event["choices"][0] for event in events[:-1]]
        text = "".join(delta["delta"]["content"] for delta in deltas)
        last = deltas[-1]
    else:
        last = (await client.post(CHAT_PATH, json=body)).json()["choices"][0]
        text = last["message"]["content"]
    assert text == "The quick bro" + ("wn fox j" if includes else "")
    assert last["finish_reason"] == "stop"
    assert last["stop_reason"] == "wn fox j"


async def test_a_completion_takes_every_form_of_prompt(
    client: httpx.AsyncClient, server: FakeServer
) -> None:
    for prompt, num_choices in (
        ("Once upon", 1),
        (["Once", "upon a"], 2),
        ([10, 11, 12], 1),
        ([[10, 11], [12]], 2),
    ):
        response = await client.post(
            COMPLETION_PATH, json={"prompt": prompt, "max_tokens": 3, "n": 2}
        )
        choices = response.json()["choices"]
        assert [choice["index"] for choice in choices] == list(range(2 * num_choices))
        assert {choice["text"] for choice in choices} == {answer_of(server, 3)}


@pytest.mark.parametrize(
    ("streams", "prompt", "num_tokens"),
    [
        (False, "Once upon a time", 3),
        (False, [40, 41, 42], 0),
        (True, "Once upon a time", 0),
        (True, [40, 41, 42], 3),
    ],
)
async def test_echo_puts_the_prompt_before_the_text(
    client: httpx.AsyncClient,
    server: FakeServer,
    prompt: object,
    streams: bool,
    num_tokens: int,
) -> None:
    body = {"prompt": prompt, "max_tokens": num_tokens, "echo": True, "n": 2}
    if streams:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *events, last, _ = await stream(client, COMPLETION_PATH, body | options)
        choices = [choice for event in events for choice in event["choices"]]
        usage = last["usage"]
    else:
        answer = (await client.post(COMPLETION_PATH, json=body)).json()
        choices, usage = answer["choices"], answer["usage"]
    texts = {each["index"]: "" for each in choices}
    for each in choices:
        texts[each["index"]] += each["text"]
    if not isinstance(prompt, str):
        decoded = await client.post("/detokenize", json={"tokens": prompt})
        prompt = decoded.json()["prompt"]
    expected = prompt + (answer_of(server, num_tokens) if num_tokens else "")
    assert texts == {0: expected, 1: expected}
    reasons = [choice["finish_reason"] for choice in choices]
    assert (reasons.count("length"), set(reasons) <= {None, "length"}) == (2, True)
    assert usage["completion_tokens"] == 2 * num_tokens
    assert any(plan.num_sampled for plan in server.device.plans) == bool(num_tokens)


async def test_token_ids_are_returned_on_request(
    client: httpx.AsyncClient, server: FakeServer
) -> None:
    body = {"prompt": [20, 21], "max_tokens": 4, "return_token_ids": True}
    whole = (await client.post(COMPLETION_PATH, json=body)).json()["choices"][0]
    assert whole["prompt_token_ids"] == [20, 21]
    assert whole["token_ids"] == list(server.answer_ids[:4])
    events = await stream(client, COMPLETION_PATH, body | {"stream": True})
    choices = [event["choices"][0] for event in events[:-1]]
    assert choices[0]["prompt_token_ids"] == [20, 21]
    ids = [i for choice in choices for i in choice.get("token_ids", [])]
    assert ids == list(server.answer_ids[:4])


async def test_a_second_identical_prompt_reports_its_cached_tokens(
    client: httpx.AsyncClient,
) -> None:
    body = {"prompt": list(range(3, 60)), "max_tokens": 1}
    await client.post(COMPLETION_PATH, json=body)
    usage = (await client.post(COMPLETION_PATH, json=body)).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 48


@pytest.mark.server(step_seconds=0.02)
async def test_a_deadline_does_not_forget_the_cached_tokens(
    client: httpx.AsyncClient,
) -> None:
    body = {"prompt": list(range(3, 60)), "max_tokens": 1, "ignore_eos": True}
    late = {"max_tokens": 190, "timeout": 0.3, "stream": True}
    options = {"stream_options": {"include_usage": True}}
    await client.post(COMPLETION_PATH, json=body)
    *_, end, last, _ = await stream(client, COMPLETION_PATH, body | late | options)
    assert end["choices"][0]["finish_reason"] == "deadline"
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 48


async def test_tokenize_and_detokenize_are_inverse(client: httpx.AsyncClient) -> None:
    text = "Zwölf Bücher, 你好"
    answer = await client.post(
        "/tokenize", json={"prompt": text, "return_token_strs": True}
    )
    tokens = answer.json()
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    # As the tokenizer spells them: bytes of characters, a letter for a space.
    assert tokens["token_strs"][0].startswith("Z")
    assert "Ġ" in "".join(tokens["token_strs"])
    back = await client.post("/detokenize", json={"tokens": tokens["tokens"]})
    assert back.json() == {"prompt": text}


async def test_tokenize_renders_a_chat(client: httpx.AsyncClient) -> None:
    answer = await client.post("/tokenize", json={"messages": CHAT["messages"]})
    text = await client.post("/detokenize", json={"tokens": answer.json()["tokens"]})
    assert text.json()["prompt"].endswith("<|im_start|>assistant\n")


async def test_operations_answer(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/version")).json()["version"]
    models = (await client.get("/v1/models")).json()
    assert [model["id"] for model in models["data"]] == ["fake"]
    await client.post(CHAT_PATH, json=CHAT | {"max_tokens": 2})
    metrics = (await client.get("/metrics")).text
    assert "trioserve_generation_tokens_total 2.0" in metrics
    assert 'trioserve_request_success_total{finished_reason="length"} 1.0' in metrics
    assert (
        f'trioserve_http_requests_total{{handler="{CHAT_PATH}",status="200"}}'
        in metrics
    )


async def test_readiness_tells_of_templates_that_do_not_end(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RendererWorkers, "is_stuck", True)
    for path in ("/health", "/readyz"):
        health = await client.get(path)
        assert health.status_code == 503
        assert int(health.headers["retry-after"]) >= 1
    refused = await client.post(CHAT_PATH, json=CHAT)
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    # Requests that need no template are still answered.
    text = {"model": "fake", "prompt": "a", "max_tokens": 1}
    assert (await client.post("/v1/completions", json=text)).status_code == 200


async def test_a_model_is_described_by_its_name(client: httpx.AsyncClient) -> None:
    (listed,) = (await client.get("/v1/models")).json()["data"]
    for path in ("/v1/models/fake", "/v1/models/fake/"):
        response = await client.get(path)
        assert (response.status_code, response.json()) == (200, listed)


async def test_a_models_name_may_hold_slashes(
    client: httpx.AsyncClient, server: FakeServer
) -> None:
    served = server.state.engine
    assert served is not None
    for name in ("org/model-7B", "/models/a", "a b"):
        served.info = replace(served.info, name=name)
        for quoted in (quote(name), quote(name, safe="")):
            response = await client.get(f"/v1/models/{quoted}")
            assert response.json()["id"] == name


async def test_a_model_has_several_names_and_the_one_of_its_source(
    client: httpx.AsyncClient, server: FakeServer
) -> None:
    served = server.state.engine
    assert served is not None
    served.info = replace(
        served.info, name="a", other_names=("b", "c"), source="org/model"
    )
    cards = (await client.get("/v1/models")).json()["data"]
    assert [card["id"] for card in cards] == ["a", "b", "c"]
    for name in ("a", "b", "c", "org/model"):
        card = (await client.get(f"/v1/models/{name}")).json()
        assert (card["id"], card["root"]) == (name, "a")
        body = {"model": name, "prompt": "x", "max_tokens": 1}
        answer = (await client.post("/v1/completions", json=body)).json()
        assert answer["model"] == "a"
    body["model"] = "d"
    refusal = (await client.post("/v1/completions", json=body)).json()
    assert "this server has `a`, `b` and `c`." in refusal["error"]["message"]


async def test_another_model_is_not_found(client: httpx.AsyncClient) -> None:
    for name in ("other", "org/fake", "/", "%0a"):
        response = await client.get(f"/v1/models/{name}")
        assert response.status_code == 404
        error = response.json()["error"]
        assert (error["type"], error["param"]) == ("NotFoundError", "model")


async def test_a_slash_at_the_end_changes_nothing(client: httpx.AsyncClient) -> None:
    body = CHAT | {"max_tokens": 1}
    assert (await client.post(f"{CHAT_PATH}/", json=body)).status_code == 200
    for path in ("/v1/models", "/health", "/version"):
        plain, slashed = await client.get(path), await client.get(f"{path}/")
        assert (slashed.status_code, slashed.content) == (200, plain.content)
    metrics = (await client.get("/metrics/")).text
    assert f'handler="{CHAT_PATH}",status="200"' in metrics
    assert f'handler="{CHAT_PATH}/"' not in metrics


async def test_no_request_is_redirected(client: httpx.AsyncClient) -> None:
    # A client that follows a redirect may drop the body.
    response = await client.post("/v1//chat/completions", json=CHAT)
    assert response.status_code == 404


async def test_bad_fields_are_400_and_named(client: httpx.AsyncClient) -> None:
    table: list[tuple[dict[str, object], str]] = [
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 100_000}, "n"),
        ({"top_p": "much"}, "top_p"),
        ({"stop_token_ids": [10**9]}, "stop_token_ids"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"max_tokens": 10_000}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x " * 5000}]}, "messages"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"response_format": {"type": "json"}}, "response_format.type"),
        ({"structured_outputs": {"regex": "["}}, "structured_outputs.regex"),
        ({"priority": -1}, "priority"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ]
    for changes, param in table:
        response = await client.post(CHAT_PATH, json=CHAT | changes)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == 400
        assert error["message"]
        assert error["param"].split("[")[0] == param


async def test_the_priority_of_everybody_may_be_named(
    client: httpx.AsyncClient,
) -> None:
    for priority in (0, None):
        body = CHAT | {"max_tokens": 1, "priority": priority}
        assert (await client.post(CHAT_PATH, json=body)).status_code == 200


async def test_http_errors_are_json_too(client: httpx.AsyncClient) -> None:
    table: list[tuple[str, str, dict[str, str], int, str]] = [
        ("GET", "/nowhere", {}, 404, "There is no such path; GET /openapi.json lists"),
        ("GET", CHAT_PATH, {}, 405, "This path takes OPTIONS and POST, not GET."),
        ("POST", "/chat/completions", {}, 404, MEANT + "POST /v1/chat/completions."),
        ("POST", "/v1/v1/chat/completions/", {}, 404, MEANT + "POST /v1/chat/compl"),
        ("POST", "//v1/Completions", {}, 404, MEANT + "POST /v1/completions."),
        ("POST", "/chat", {}, 404, MEANT + "POST /v1/chat/completions."),
        ("POST", "/generate", {}, 404, MEANT + "POST /v1/completions."),
        ("GET", "/openai/v1/models/a/b", {}, 404, MEANT + "GET /v1/models/a/b."),
        ("GET", "/requests", {}, 404, MEANT + "DELETE or GET /v1/requests."),
        ("GET", "/v1/health", {}, 404, MEANT + "GET /health."),
        ("POST", "/message", {}, 404, MEANT + "POST /v1/messages."),
        ("GET", f"/v1/models/{'x' * 300}/v1", {}, 404, "The model `x"),
        ("GET", f"/v1/v1/models/{'x' * 300}", {}, 404, PATHS),
        ("get", CHAT_PATH, {}, 405, "This path takes OPTIONS and POST, not get."),
        ("delete", "/v1/requests", {}, 405, "This path takes DELETE, GET, HEAD"),
        ("get", "/livez", {}, 405, "This path takes GET, HEAD and OPTIONS, not get."),
        ("get", "/nowhere", {}, 404, "There is no such path; GET /openapi.json lists"),
        ("PUT", "/health", {}, 405, "This path takes GET, HEAD and OPTIONS, not PUT."),
        ("POST", CHAT_PATH, {"Content-Type": "text/plain"}, 415, "Content-Type must"),
        ("POST", CHAT_PATH, {}, 415, "Content-Type must be application/json."),
        ("POST", CHAT_PATH, {"Content-Type": "APPLICATION/JSON"}, 400, "The body"),
        ("POST", CHAT_PATH, {"Content-Type": 'X/Y+Json; Z="a;b"'}, 400, "The body"),
    ]
    for method, path, headers, status, message in table:
        request = client.build_request(method, path, headers=headers, content=b"")
        # The client has written it in capitals.
        request.method = method
        response = await client.send(request)
        assert response.status_code == status
        error = response.json()["error"]
        assert error["message"].startswith(message)
        assert error["code"] == status
        assert error["type"] == ERROR_TYPES[status]
        assert ("allow" in response.headers) == (status == 405)


async def test_a_limit_that_does_not_fit_is_named_as_it_was_sent(
    client: httpx.AsyncClient,
) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        response = await client.post(CHAT_PATH, json=CHAT | {name: 256})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == name
        assert "256 output tokens were requested" in error["message"]


async def test_a_limit_that_was_not_sent_fits_the_prompt(
    client: httpx.AsyncClient,
) -> None:
    for num_ids, num_tokens in [(200, 16), (254, 2)]:
        body = {"prompt": [[5], [5] * num_ids]}
        response = await client.post(COMPLETION_PATH, json=body)
        assert response.status_code == 200
        answer = response.json()
        assert answer["usage"]["completion_tokens"] == 2 * num_tokens
        assert [each["finish_reason"] for each in answer["choices"]] == ["length"] * 2
    # No name of a limit.
    body = {"prompt": [5] * 254, "min_tokens": 10}
    response = await client.post(COMPLETION_PATH, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == (
        "min_tokens: must not exceed the most output tokens, 2"
    )


# Only the tokenizer finds this error, which is answered 400.
TOO_LONG = "1" * 2000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETION_PATH, {"prompt": TOO_LONG}),
        (CHAT_PATH, {"messages": [{"role": "user", "content": TOO_LONG}]}),
    ],
)
@pytest.mark.server(max_queued_requests=0, step_seconds=0.05)
async def test_a_full_engine_refuses_before_anything_is_rendered(
    server: FakeServer,
    client: httpx.AsyncClient,
    nursery: trio.Nursery,
    path: str,
    body: dict[str, object],
) -> None:
    filling = {"prompt": [5, 6], "n": 32, "max_tokens": 100}
    nursery.start_soon(lambda: client.post(COMPLETION_PATH, json=filling))
    while server.engine.statistics().num_streams == 0:
        await trio.sleep(0.001)
    response = await client.post(path, json=body)
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    # The server is well, but a load balancer should choose another one.
    assert (await client.get("/health")).status_code == 200
    ready = await client.get("/readyz")
    assert ready.status_code == 503
    # A moment later the estimate may be another one.
    assert int(ready.headers["retry-after"]) >= 1
    assert ready.json()["error"] == response.json()["error"] | {"code": 429}
    assert (await client.get("/livez")).status_code == 200
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("streams", [False, True])
async def test_an_engine_that_dies_is_500_or_in_mid_stream_an_event(
    tokenizer_folder: Path, streams: bool
) -> None:
    with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
        async with open_fake_server(tokenizer_folder, fail_at_step=4) as server:
            async with httpx.AsyncClient(base_url=server.url) as client:
                with trio.CancelScope(shield=True):
                    answer = await client.post(
                        CHAT_PATH, json=CHAT | {"stream": streams}
                    )
    if not streams:
        assert answer.status_code == 500
        assert "engine" in answer.json()["error"]["message"]
        return
    first, *_, error, done = raw_http.read_events(answer.text)
    assert first["choices"]
    assert error["error"]["code"] == 500
    assert done == "[DONE]"


async def test_a_dead_engines_health_says_when_to_come_again(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    server.engine.close_requests(EngineDied())
    for path in ("/health", "/progressz"):
        response = await client.get(path)
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
    # Another request to this server would fail, too.
    answer = await client.post(CHAT_PATH, json=CHAT)
    assert answer.status_code == 500
    assert "retry-after" not in answer.headers


@pytest.mark.server(http=HttpConfig(drain_timeout=0.1), step_seconds=0.02)
async def test_a_drains_deadline_ends_streams_with_an_error(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    events: list[Any] = []

    async def read() -> None:
        body = CHAT | {"stream": True, "max_tokens": 200}
        events.extend(await stream(client, CHAT_PATH, body))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        while server.engine.statistics().num_streams == 0:
            await trio.lowlevel.checkpoint()
        server.state.lifecycle.begin_drain()
    assert events[-2]["error"]["code"] == 503
    assert events[-1] == "[DONE]"
