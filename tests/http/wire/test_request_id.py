"""Each answer has the id of its request, from the client or from the server."""

from __future__ import annotations

import json
import logging
import re

import httpx2 as httpx
import pytest

from trioserve.frontend import TextEngine, TextStream

CHAT_PATH = "/v1/chat/completions"
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
MADE = re.compile(r"[0-9a-f]{32}")


async def test_an_id_comes_back_or_is_made(client: httpx.AsyncClient) -> None:
    for method, path, body, status in (
        ("GET", "/health", None, 200),
        ("HEAD", "/health", None, 200),
        ("POST", CHAT_PATH, CHAT, 200),
        ("POST", CHAT_PATH, CHAT | {"stream": True}, 200),
        ("POST", CHAT_PATH, CHAT | {"n": 0}, 400),
        ("POST", CHAT_PATH, CHAT | {"model": "other"}, 404),
        ("POST", CHAT_PATH, None, 415),
        ("GET", CHAT_PATH, None, 405),
        ("GET", "/nowhere", None, 404),
    ):
        ids = []
        for sent in ({"x-request-id": "theirs-1._"}, {}, {}):
            response = await client.request(method, path, json=body, headers=sent)
            assert response.status_code == status
            ids += response.headers.get_list("x-request-id")
        assert ids[0] == "theirs-1._"
        assert MADE.fullmatch(ids[1]) and MADE.fullmatch(ids[2])
        assert len(set(ids)) == 3


async def test_an_id_that_could_do_harm_is_replaced(client: httpx.AsyncClient) -> None:
    for sent in ("", "a b", "\x1b[2J", "a" * 129, "a;b=c", "{}"):
        response = await client.get("/health", headers={"x-request-id": sent})
        assert MADE.fullmatch(response.headers["x-request-id"]), sent


@pytest.mark.parametrize("streams", [False, True])
async def test_the_answers_id_agrees_with_the_header(
    client: httpx.AsyncClient, streams: bool
) -> None:
    for header, field, in_header, in_body in (
        (None, None, None, None),
        ("theirs", None, "theirs", "theirs"),
        (None, "mine", "mine", "mine"),
        ("theirs", "mine", "theirs", "mine"),
    ):
        response = await client.post(
            CHAT_PATH,
            json=CHAT | {"stream": streams, "request_id": field},
            headers={} if header is None else {"x-request-id": header},
        )
        text = response.text.split("\n")[0].removeprefix("data: ")
        found = response.headers["x-request-id"]
        assert found == (in_header or found)
        assert json.loads(text)["id"] == f"chatcmpl-{in_body or found}"


async def test_the_log_says_which_request_it_was(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "trioserve")
    response = await client.post(CHAT_PATH, json=CHAT | {"surprise": 1})
    name = response.headers["x-request-id"]
    log = [r.getMessage() for r in caplog.records if r.name.startswith("trioserve")]
    assert f"request {name}: ignored unknown fields: surprise" in log
    assert f"request {name}: POST {CHAT_PATH} is answered with 200" in log


@pytest.mark.parametrize("streams", [False, True])
async def test_a_request_that_fails_is_found_in_the_log(
    client: httpx.AsyncClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    streams: bool,
) -> None:
    # An unexpected defect: None is not callable.
    broken = TextStream if streams else TextEngine
    monkeypatch.setattr(broken, "__anext__" if streams else "open_text", None)
    response = await client.post(CHAT_PATH, json=CHAT | {"stream": streams})
    assert response.status_code == (200 if streams else 500)
    assert "Internal server error" in response.text
    (record,) = (each for each in caplog.records if each.levelname == "ERROR")
    assert f"request {response.headers['x-request-id']} " in record.getMessage()
