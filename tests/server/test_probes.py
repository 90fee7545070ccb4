"""Probes are answered without quart, and exactly as quart would answer them."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import raw_http

from trioserve.errors import EngineDied
from trioserve.server.admin import status as admin
from trioserve.server.admin.probes import Probe
from trioserve.server.app import ServingApp
from trioserve.server.routes import ROUTES
from trioserve.testing.server import FakeServer

PROBES = [
    route.paths[0] for route in ROUTES if isinstance(route.handler, Probe)
]  # /health, ...

# Parts of an answer that differ from one request to the next.
CHANGING = re.compile(
    rb"^(date|content-length): .*|^x-request-id: [0-9a-f]{32}\r|"
    rb"^trioserve_(http_requests_total|slow_task).*\n| [-+0-9.e]+$",
    re.MULTILINE,
)


async def ask(server: FakeServer, packet: str) -> bytes:
    return await raw_http.ask(server.port, packet.encode("latin-1"))


def test_the_paths_that_monitors_ask_are_probes() -> None:
    assert PROBES == [
        "/is_sleeping",
        *("/health", "/livez", "/readyz", "/progressz", "/metrics", "/version"),
    ]


@pytest.mark.parametrize("is_dead", [False, True])
async def test_probes_are_answered_as_by_quart(
    server: FakeServer, is_dead: bool
) -> None:
    if is_dead:
        server.engine.close_requests(EngineDied())
    for path in PROBES:
        for method in ("GET", "HEAD"):
            for end in (
                "1.0\r\n\r\n",
                "1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
                "1.1\r\nHost: h\r\nX-Request-Id: a\r\nX-Request-Id: b\r\n"
                "Connection: close\r\n\r\n",
                "1.1\r\nHost: h\r\nX-Request-Id: \xff\r\nConnection: close\r\n\r\n",
            ):
                if method == "HEAD" and "X-Request-Id" in end:
                    continue
                plain = await ask(server, f"{method} {path} HTTP/{end}")
                # quart answers the path with a slash.
                routed = await ask(server, f"{method} {path}/ HTTP/{end}")
                assert CHANGING.sub(b"", plain) == CHANGING.sub(b"", routed)


async def test_quart_does_not_see_a_probe(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: ServingApp, request: object) -> Any:
        raise AssertionError("quart got the request")

    monkeypatch.setattr(ServingApp, "handle_request", fail)
    for path in PROBES:
        answer = await ask(server, f"GET {path}?a=b HTTP/1.0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "body",
    [
        "Content-Length: 3\r\n\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ],
)
async def test_a_probe_with_a_body_does_not_confuse_the_next_request(
    server: FakeServer, body: str
) -> None:
    answers = await ask(
        server,
        f"GET /health HTTP/1.1\r\nHost: h\r\n{body}"
        "GET /version HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    )
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"200"]
    assert answers.endswith(b"}")


async def test_pipelined_probes_are_answered_in_order(server: FakeServer) -> None:
    answers = await ask(
        server,
        "GET /version HTTP/1.1\r\nHost: h\r\nX-Request-Id: 1\r\n\r\n"
        "HEAD /version HTTP/1.1\r\nHost: h\r\nX-Request-Id: 2\r\n\r\n"
        "GET /nowhere HTTP/1.1\r\nHost: h\r\nX-Request-Id: 3\r\n\r\n"
        "GET /health HTTP/1.1\r\nHost: h\r\nX-Request-Id: 4\r\n"
        "Connection: close\r\n\r\n",
    )
    assert re.findall(rb"x-request-id: (\d)", answers) == [b"1", b"2", b"3", b"4"]


async def test_probes_are_counted_by_path_and_status(server: FakeServer) -> None:
    for _ in range(3):
        await ask(server, "GET /health HTTP/1.0\r\n\r\n")
    server.engine.close_requests(EngineDied())
    await ask(server, "GET /health HTTP/1.0\r\n\r\n")
    assert server.state.counts.answered == {
        ("/health", "200"): 3,
        ("/health", "503"): 1,
    }
    assert server.state.lifecycle.num_active == 0
    assert not any(server.state.counts.cancelled.values())


async def test_a_probe_that_fails_is_answered_500_and_logged(
    server: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(state: object) -> bytes:
        raise ValueError("a defect")

    monkeypatch.setattr(admin, "render_metrics", fail)
    answer = await ask(server, "GET /metrics HTTP/1.0\r\nX-Request-Id: its-id\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 ") and b'"code":500' in answer
    [record] = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert "its-id" in record.getMessage()
    assert server.state.counts.answered == {("/metrics", "500"): 1}
