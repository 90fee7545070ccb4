"""Text from clients cannot begin a new line of the log."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from urllib.parse import quote

import httpx2 as httpx
import pytest
import trio

from trioserve.testing.server import open_fake_server

FORGED = "x\r\n2026-01-01 CRITICAL trioserve: all is lost\u2028\x1b[2J"
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}


def chat(**fields: object) -> dict[str, object]:
    return {"method": "POST", "url": "/v1/chat/completions", "json": CHAT | fields}


HOSTILE: list[dict[str, object]] = [
    chat(**{FORGED: 1}),
    chat(model=FORGED),
    chat(messages=[{"role": "user", "content": FORGED}]),
    chat(stop=[FORGED]),
    chat(cache_salt=FORGED),
    chat(logits_processors={FORGED: {}}),
    chat(chat_template_kwargs={FORGED: FORGED}),
    {"method": "GET", "url": "/" + quote(FORGED)},
    {"method": "GET", "url": "/v1/models/" + quote(FORGED)},
    {"method": "GET", "url": "/health?" + quote(FORGED)},
    {"method": "GET", "url": "/health", "headers": {"x-request-id": "\x1b[2J"}},
]


async def test_clients_cannot_write_a_line_of_the_log(
    tokenizer_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with trio.fail_after(60):
        async with (
            open_fake_server(tokenizer_folder) as server,
            httpx.AsyncClient(base_url=server.url) as client,
        ):
            for request in HOSTILE:
                await client.request(**request)  # type: ignore[arg-type]
    # The client runs in the same process, and writes to the log, too.
    ours = [each for each in caplog.records if not each.name.startswith("http")]
    assert [m for each in ours if not (m := each.getMessage()).isprintable()] == []


async def test_unknown_fields_are_logged_in_one_line(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "trioserve.api.decode.body")
    await client.post("/v1/chat/completions", json=CHAT | {FORGED: 1, "other": 2})
    (record,) = (
        each for each in caplog.records if each.name == "trioserve.api.decode.body"
    )
    message = record.getMessage()
    assert message.isprintable()
    assert json.dumps(FORGED)[1:-1].replace("\\u001b", "\\x1b") in message
    assert message.endswith(", other")
