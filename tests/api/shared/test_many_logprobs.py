"""Answers with many log probabilities, and requests for too many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from trioserve.api.completions.answers import build_completion_logprobs
from trioserve.api.responses.request import LOGPROBS
from trioserve.api.shared import logprobs
from trioserve.api.shared.logprobs import (
    TokenTexts,
    build_chat_logprobs,
    build_prompt_logprobs,
)
from trioserve.engine.generation import admission
from trioserve.http.wire.error_body import encode
from trioserve.testing.server import FakeServer
from trioserve.types.output import TokenLogprobs

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = {"messages": MESSAGES, "logprobs": True, "max_tokens": 8}
COMPLETION = {"prompt": "hi", "max_tokens": 1}
RESPONSE = {"input": "hi", "include": [LOGPROBS], "max_output_tokens": 8}


@pytest.fixture(autouse=True)
def low_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_LOGPROB_ENTRIES", 8)
    # So that this test has many.
    monkeypatch.setattr(admission, "DEFAULT_MAX_LOGPROBS", 0)


async def test_the_field_that_asks_for_too_many_is_named(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    requests: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/chat/completions", CHAT | {"top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", CHAT | {"top_logprobs": 1, "n": 2}, "top_logprobs"),
        ("/v1/responses", RESPONSE | {"top_logprobs": 2}, "top_logprobs"),
        (
            "/v1/responses",
            RESPONSE | {"top_logprobs": 2, "background": True},
            "top_logprobs",
        ),
        ("/v1/completions", COMPLETION | {"logprobs": 1, "n": 9}, "logprobs"),
        (
            "/v1/completions",
            {"prompt": "hi " * 9, "max_tokens": 1, "logprobs": 1, "echo": True},
            "logprobs",
        ),
        (
            "/v1/completions",
            {"prompt": "hi " * 9, "max_tokens": 1, "prompt_logprobs": 1},
            "prompt_logprobs",
        ),
    ]
    for path, body, param in requests:
        answer = await client.post(path, json=body)
        assert answer.status_code == 400, body
        error = answer.json()["error"]
        assert error["param"] == param, body
        assert error["message"].startswith(f"{param}: the answer may have ")
        assert "fewer alternatives, fewer tokens or a lower n" in error["message"]
    assert not server.device.plans
    # Just as many as there may be.
    body = CHAT | {"top_logprobs": 1}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200


@pytest.mark.parametrize("build", [build_chat_logprobs, build_prompt_logprobs])
def test_long_positions_are_written_as_short_ones(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = TokenTexts(lambda token_id: bytes([token_id]))
    entries = [
        TokenLogprobs(
            token_id=65, logprob=-0.5, rank=1, top=((65, -0.5), (200, -float("inf")))
        )
    ]
    whole = encode(build(entries, texts))
    monkeypatch.setattr(logprobs, "_LONG", 2)
    assert encode(build(entries, texts)) == whole


def test_long_positions_of_completions_are_written_as_short_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = TokenTexts(lambda token_id: bytes([token_id]))
    entry = TokenLogprobs(token_id=65, logprob=-0.5, rank=1, top=((66, -1.0),))
    whole = encode(build_completion_logprobs([64, 65], [None, entry], texts, [0, 1]))
    monkeypatch.setattr(logprobs, "_LONG", 1)
    assert (
        encode(build_completion_logprobs([64, 65], [None, entry], texts, [0, 1]))
        == whole
    )
