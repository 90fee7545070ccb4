"""Each request is a span with a child for each phase, sent to a collector over a socket."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import logging
from pathlib import Path
import sys
import threading
import time
from typing import Any

import httpx2 as httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
import pytest
import trio

from trioserve.config import HttpConfig
from trioserve.errors import MissingExtra
from trioserve.http.record import traces
from trioserve.http.record.progress import EndedRequest
from trioserve.http.record.traces import Traces
from trioserve.http.state import ServerState
from trioserve.testing.server import open_fake_pooling_server, open_fake_server

CHAT_PATH = "/v1/chat/completions"
CHAT = {"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 3}
PHASES = ["body", "render", "queue", "prefill", "decode", "write"]
TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"


class Collector:
    """An OTLP receiver: it listens on a port, and keeps what it gets."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.hangs = threading.Event()
        self.goes_on = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if collector.hangs.is_set():
                    collector.goes_on.wait(20)
                assert self.path == "/v1/traces"
                sent = ExportTraceServiceRequest.FromString(content)
                collector.requests.append(sent)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Keep stderr clean."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def roots(self) -> list[Span]:
        return [span for span in self.spans if span.kind == Span.SPAN_KIND_SERVER]

    async def wait_roots(self, number: int = 1) -> list[Span]:
        while len(self.roots) < number:
            await trio.sleep(0.01)
        assert len(self.roots) == number
        return self.roots


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in ("_COLLECT_SECONDS", "_CLOSE_SECONDS", "_GIVE_UP_SECONDS"):
        monkeypatch.setattr(traces, name, 0.05)
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever, args=(0.01,))
    thread.start()
    yield collector
    collector.goes_on.set()
    collector.server.shutdown()
    collector.server.server_close()
    thread.join()


@pytest.fixture
def server_options(collector: Collector) -> dict[str, Any]:
    return {"http": HttpConfig(otlp_traces_endpoint=collector.url)}


def read(span: Span) -> dict[str, Any]:
    """Return the attributes of a span."""
    found = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        if kind == "array_value":
            value = [item.string_value for item in value.values]
        found[each.key] = value
    return found


@pytest.mark.server(step_seconds=0.01)
async def test_a_chat_has_a_span_and_children(
    client: httpx.AsyncClient, collector: Collector
) -> None:
    body = CHAT | {"stream": True, "n": 2, "temperature": 0.5}
    await client.post(CHAT_PATH, json=body, headers={"X-Request-Id": "mine"})
    [root] = await collector.wait_roots()
    assert (root.name, root.status.code) == ("chat fake", Status.STATUS_CODE_UNSET)
    assert not root.parent_span_id
    [resource] = collector.requests[0].resource_spans
    facts = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert facts["service.name"] == "trioserve"
    attributes = read(root)
    assert attributes.pop("gen_ai.usage.input_tokens") > 0
    assert attributes == {
        "http.request.method": "POST",
        "http.route": CHAT_PATH,
        "http.response.status_code": 200,
        "url.path": CHAT_PATH,
        "trioserve.request.id": "mine",
        "trioserve.ending": "answered",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "trioserve",
        "gen_ai.request.model": "fake",
        "gen_ai.response.model": "fake",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 6,
    }
    children = [s for s in collector.spans if s.kind == Span.SPAN_KIND_INTERNAL]
    assert [child.name for child in children] == PHASES
    # Without gaps, from the beginning of the request to its end.
    ends = [root.start_time_unix_nano]
    for child in children:
        assert child.parent_span_id == root.span_id
        assert child.trace_id == root.trace_id
        assert child.start_time_unix_nano == ends[-1]
        ends.append(child.end_time_unix_nano)
    assert ends == sorted(ends) and ends[-1] == root.end_time_unix_nano
    decode = children[PHASES.index("decode")]
    # Two tokens behind the first one.
    assert decode.end_time_unix_nano > decode.start_time_unix_nano
    assert "secret" not in str(collector.requests)


async def test_the_trace_of_the_client_is_taken_over(
    client: httpx.AsyncClient, collector: Collector
) -> None:
    headers = {"traceparent": PARENT, "tracestate": "vendor=1"}
    await client.get("/v1/models", headers=headers)
    [root] = await collector.wait_roots()
    unsampled = f"00-{TRACE_ID}-{PARENT_ID}-00"
    await client.get("/v1/models", headers={"traceparent": unsampled})
    future = f"cc-{TRACE_ID}-{PARENT_ID}-01-what-the-future-brings"
    await client.get("/v1/models", headers={"traceparent": future})
    _, second = await collector.wait_roots(2)
    for span in (root, second):
        assert span.trace_id.hex() == TRACE_ID
        assert span.parent_span_id.hex() == PARENT_ID
    assert root.trace_state == "vendor=1"
    assert root.name == "GET /v1/models"


async def test_a_malformed_parent_is_ignored(
    client: httpx.AsyncClient, collector: Collector
) -> None:
    malformed = [
        ["nonsense"],
        [f"00-{'0' * 32}-{PARENT_ID}-01"],
        [f"00-{TRACE_ID}-{'0' * 16}-01"],
        [f"ff-{TRACE_ID}-{PARENT_ID}-01"],
        [f"{PARENT}-more"],
        [PARENT.upper()],
        [PARENT, PARENT],
        ["x" * 50_000],
    ]
    for parents in malformed:
        headers = [("traceparent", each) for each in parents]
        answer = await client.get("/v1/models", headers=headers)
        assert answer.status_code == 200
    for root in await collector.wait_roots(len(malformed)):
        assert root.trace_id.hex() != TRACE_ID and not root.parent_span_id


@pytest.mark.server(step_seconds=0.05)
async def test_errors(client: httpx.AsyncClient, collector: Collector) -> None:
    await client.get("/a/path/of/the/client")
    body = CHAT | {"max_tokens": 100}
    await client.post(CHAT_PATH, json=body | {"timeout": 0.1})
    with pytest.raises(httpx.ReadTimeout):
        await client.post(CHAT_PATH, json=body, timeout=0.2)
    unknown, late, left = await collector.wait_roots(3)
    # Names and routes of clients are not names of spans.
    assert unknown.name == "GET"
    assert read(unknown)["error.type"] == "NotFoundError"
    assert unknown.status.code == Status.STATUS_CODE_UNSET
    assert read(late)["error.type"] == "DeadlineExceeded"
    assert late.status.code == Status.STATUS_CODE_ERROR
    assert read(left)["trioserve.ending"] == "disconnected"
    assert read(left)["trioserve.phase"] == "decode"
    assert "http.response.status_code" not in read(left)


@pytest.mark.server(open=open_fake_pooling_server)
async def test_embeddings(client: httpx.AsyncClient, collector: Collector) -> None:
    await client.post("/v1/embeddings", json={"input": "a"})
    [root] = await collector.wait_roots()
    assert root.name == "embeddings fake"
    assert read(root)["gen_ai.usage.input_tokens"] > 0


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_collector_that_is_dead_costs_traces_alone(
    tokenizer_folder: Path,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    hangs: bool,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0.3")
    # A thread of another test may still try to send.
    exporter = logging.getLogger(
        "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    )
    monkeypatch.setattr(exporter, "filters", [])
    if hangs:
        collector.hangs.set()
    else:
        collector.url = "http://127.0.0.1:1/v1/traces"
    http = HttpConfig(otlp_traces_endpoint=collector.url)
    with trio.fail_after(60):
        async with (
            open_fake_server(tokenizer_folder, http=http) as server,
            httpx.AsyncClient(base_url=server.url, timeout=20) as client,
        ):
            for _ in range(3):
                answer = await client.post(CHAT_PATH, json=CHAT)
                assert answer.status_code == 200
                await trio.sleep(0.06)
            text = ""
            while not hangs and "trioserve_traces_dropped_total 3.0" not in text:
                await trio.sleep(0.05)
                text = (await client.get("/metrics")).text
    assert collector.requests == []
    lines = [each for each in caplog.records if "opentelemetry" in each.name]
    assert len(lines) <= 1
    assert hangs or lines[0].levelno >= logging.WARNING


def make_ended(**facts: Any) -> EndedRequest:
    given: dict[str, Any] = {
        **dict.fromkeys(EndedRequest.__dataclass_fields__),
        "arrived_at": 0.0,
        "ended_at": 1.0,
        "spans": (),
        "finish_reasons": {},
    }
    return EndedRequest(**given | facts)


def test_what_waits_for_the_collector_is_bounded(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "_MAX_WAITING", 600)
    # The thread has not begun, as if it hung.
    waiting = Traces(collector.url)
    for _ in range(traces._MAX_WAITING + 5):
        waiting.take(make_ended(method="GET", path="/", id="i", ending="answered"))
    assert waiting.num_dropped == 5
    waiting.start()
    give_up_at = time.monotonic() + 10
    while len(collector.roots) < traces._MAX_WAITING:
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
    waiting.close()
    assert len(collector.roots) == traces._MAX_WAITING
    assert (
        max(
            len(each.resource_spans[0].scope_spans[0].spans)
            for each in collector.requests
        )
        <= 512
    )


def test_what_is_not_installed_is_named_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    config = HttpConfig(otlp_traces_endpoint="http://localhost:4318/v1/traces")
    with pytest.raises(MissingExtra, match=r"pip install 'trioserve\[otel\]'"):
        ServerState(config=config)
