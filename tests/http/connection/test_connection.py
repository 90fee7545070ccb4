"""The guarded connections of trioserve.http.connection, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
import contextlib
from dataclasses import dataclass, field
from functools import partial
import gc
from importlib.metadata import version
import itertools
import logging
import os
from pathlib import Path
import random
import socket
import ssl
import sys
import time
from typing import Any

import h2.config
import h2.connection
import h2.events
from hostile import INPUTS
from http2_client import Http2Client
from hypercorn.trio import serve
import hypercorn.trio.run
import hypercorn.trio.tcp_server
import pytest
from quart import request
from quart_trio import QuartTrio
import raw_http
from raw_http import read_all, read_until, reset
import trio
from trio.testing import wait_all_tasks_blocked

from trioserve.errors import StartupError
from trioserve.http.connection import install_guard, make_config

CLOSE = b"Host: h\r\nConnection: close\r\n\r\n"
KEEP = b"Host: h\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n"

Asgi = Callable[..., Awaitable[None]]


LARGE = random.Random(1).randbytes(2**23)


@dataclass
class AppState:
    """The gate of the app's streams, and whether a client has left one."""

    gate: trio.Event = field(default_factory=trio.Event)
    left: trio.Event = field(default_factory=trio.Event)

    async def play(self, script: Script) -> AsyncIterator[bytes]:  # noqa: ASYNC900
        """Yield the chunks of `script`, and wait for its events."""
        try:
            for item in script:
                if isinstance(item, trio.Event):
                    await item.wait()
                else:
                    await trio.lowlevel.checkpoint()
                    yield item
        finally:
            self.left.set()


Script = Iterable[bytes | trio.Event]


def make_app(state: AppState) -> QuartTrio:
    """An app with a short answer, an echo, and streams that end, wait or do not end."""
    app = QuartTrio("test")
    app.config.update(RESPONSE_TIMEOUT=None, MAX_CONTENT_LENGTH=2**20)
    scripts: dict[str, Script] = {
        "events": [b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n"],
        "gated": [b"first", state.gate, b"last"],
        "endless": itertools.repeat(bytes(2**16)),
        "large": [LARGE],
    }

    @app.get("/health")
    async def health() -> str:
        await trio.lowlevel.checkpoint()
        return "well"

    @app.post("/echo")
    async def echo() -> bytes:
        data: bytes = await request.get_data()
        return data

    @app.get("/<any(events, gated, endless, large):name>")
    async def stream(name: str) -> AsyncIterator[bytes]:
        await trio.lowlevel.checkpoint()
        return state.play(scripts[name])

    return app


@dataclass
class Server:
    port: int
    stop: trio.Event
    stopped: trio.Event

    async def connect(self) -> trio.SocketStream:
        return await raw_http.connect(self.port)

    async def ask(self, packet: bytes) -> bytes:
        return await raw_http.ask(self.port, packet)


def accepted_from(client: trio.SocketStream) -> socket.socket | None:
    """Find the server's end of a connection, which is in this process too."""
    address = client.socket.getsockname()
    for found in gc.get_objects():
        # isinstance would read __class__ of every object on the heap.
        if issubclass(type(found), socket.socket):
            with contextlib.suppress(OSError):
                if found.getpeername() == address:
                    return found
    return None


StartServer = Callable[..., Awaitable[Server]]


@pytest.fixture
def state() -> AppState:
    return AppState()


@pytest.fixture
async def start_server(
    nursery: trio.Nursery, state: AppState
) -> AsyncIterator[StartServer]:
    """Return a function that starts a server of an app, by default of make_app's."""

    async def start(
        app: Asgi | QuartTrio | None = None,
        *,
        enable_h2c: bool = False,
        write_timeout_seconds: float = 30.0,
        certificate: Path | None = None,
        server_names: list[str] | None = None,
        **timeouts: float,
    ) -> Server:
        install_guard(
            enable_h2c=enable_h2c, write_timeout_seconds=write_timeout_seconds
        )
        config = make_config(bind=["127.0.0.1:0"], **timeouts)
        config.server_names = server_names or []
        if certificate is not None:
            config.certfile = str(certificate / "fullchain.pem")
            config.keyfile = str(certificate / "privkey.pem")
        stop, stopped = trio.Event(), trio.Event()

        async def run(  # noqa: ASYNC128 (hypercorn calls started)
            task_status: trio.TaskStatus[list[str]],
        ) -> None:
            await serve(
                app or make_app(state),  # type: ignore[arg-type]
                config,
                shutdown_trigger=stop.wait,
                task_status=task_status,
            )
            stopped.set()

        [address] = await nursery.start(run)
        return Server(int(address.rpartition(":")[2]), stop, stopped)

    with trio.fail_after(60):
        yield start


@pytest.fixture
async def server(start_server: StartServer) -> Server:
    return await start_server()


@pytest.mark.slow
@pytest.mark.parametrize("enable_h2c", [False, True])
async def test_a_hostile_packet_harms_no_other_connection(
    start_server: StartServer,
    state: AppState,
    caplog: pytest.LogCaptureFixture,
    enable_h2c: bool,
) -> None:
    server = await start_server(enable_h2c=enable_h2c)
    async with await server.connect() as neighbour:
        await neighbour.send_all(b"GET /gated HTTP/1.1\r\n" + CLOSE)
        beginning = await read_until(neighbour, b"first")
        for name, packet in INPUTS.items():
            # All of these are refused at once by HTTP/1.
            if name.startswith("HTTP/2") and not enable_h2c:
                continue
            async with await server.connect() as stranger:
                await send_whole(stranger, packet)
                await wait_all_tasks_blocked()
            assert b"well" in await server.ask(HEALTH + CLOSE), name
            errors = [r for r in caplog.records if r.levelno >= logging.ERROR]
            assert not errors, f"{name} fills the log"
        state.gate.set()
        answer = beginning + await read_all(neighbour)
    assert answer.endswith(b"5\r\nfirst\r\n4\r\nlast\r\n0\r\n\r\n")


async def send_whole(stranger: trio.SocketStream, packet: bytes) -> None:
    # The server may refuse the packet before it reads it.
    with contextlib.suppress(trio.BrokenResourceError):
        await stranger.send_all(packet)


async def test_a_storm_of_resets_is_survived(server: Server) -> None:
    for _ in range(50):
        client = await server.connect()
        await client.send_all(b"GET /endless HTTP/1.1\r\n" + KEEP)
        await reset(client)
    assert b"well" in await server.ask(HEALTH + CLOSE)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("HTTP/1: transfer-encoding and content-length", b"400"),
        ("HTTP/1: transfer-encoding in HTTP/1.0", b"400"),
        ("HTTP/1: target without a path", b"400"),
        ("HTTP/1: target is an IPv6 bracket", b"404"),
        ("HTTP/1: authority form", b"400"),
        ("HTTP/1: absolute form", b"200"),
        ("HTTP/1: HTTP/9.9", b"505"),
        ("HTTP/1: header of 200 kB", b"431"),
        ("HTTP/1: websocket upgrade and one byte", b"200"),
        ("HTTP/1: h2c upgrade", b"200"),
        ("HTTP/2: preface alone", b"505"),
    ],
)
async def test_ambiguous_requests_are_refused_and_upgrades_are_ignored(
    server: Server, name: str, status: bytes
) -> None:
    async with await server.connect() as client:
        await client.send_all(INPUTS[name])
        answer = await read_until(client, b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"hypercorn" not in answer


async def test_an_idle_connection_is_closed(start_server: StartServer) -> None:
    server = await start_server(keep_alive_timeout_seconds=0.1)
    answer = await server.ask(HEALTH + KEEP)
    assert answer.endswith(b"well")
    # The same limit holds for headers that never end.
    assert await server.ask(b"GET /health HT") == b""


async def test_a_request_that_came_before_the_close_is_answered(
    start_server: StartServer,
) -> None:
    server = await start_server(keep_alive_timeout_seconds=0.02)
    # The timer and the reader become ready together, and either may run first.
    for _ in range(10):
        async with await server.connect() as client:
            await client.send_all(HEALTH + KEEP)
            await read_until(client, b"well")
            os.write(client.socket.fileno(), HEALTH + KEEP)
            time.sleep(0.03)  # noqa: ASYNC251 (the event loop is late)
            await read_until(client, b"well")


@pytest.mark.parametrize("packet", [HEALTH + CLOSE, b"GET ? HTTP/1.1\r\n" + KEEP])
async def test_an_ended_connection_is_closed_though_its_client_stays(
    server: Server, packet: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trioserve.http.connection.server.LINGER_SECONDS", 0.0)
    async with await server.connect() as client:
        await client.send_all(packet)
        await read_all(client)
        await wait_all_tasks_blocked()
        assert accepted_from(client) is None


async def test_an_http_1_0_stream_ends(server: Server) -> None:
    answer = await server.ask(b"GET /events HTTP/1.0\r\n\r\n")
    assert answer.endswith(b"\r\n\r\ndata: 0\n\ndata: 1\n\ndata: 2\n\n")


async def test_bytes_that_the_kernel_does_not_take_at_once_follow_in_order(
    server: Server,
) -> None:
    async with await server.connect() as client:
        await client.send_all(b"GET /large HTTP/1.0\r\n\r\n")
        await wait_all_tasks_blocked()
        answer = await read_all(client)
    assert answer.partition(b"\r\n\r\n")[2] == LARGE


@pytest.mark.parametrize(
    ("fields", "extra"), [(KEEP, b""), (CLOSE, b"\r\n"), (KEEP, HEALTH + KEEP)]
)
async def test_a_client_that_leaves_cancels_its_request(
    server: Server, state: AppState, fields: bytes, extra: bytes
) -> None:
    async with await server.connect() as client:
        await client.send_all(b"GET /gated HTTP/1.1\r\n" + fields + extra)
        await read_until(client, b"first")
    await state.left.wait()


async def test_a_client_that_is_far_ahead_is_read_no_further(
    server: Server,
    state: AppState,
) -> None:
    has_sent = trio.Event()

    async def send_much(client: trio.SocketStream) -> None:
        await send_whole(client, bytes(2**26))
        has_sent.set()

    async with await server.connect() as client, trio.open_nursery() as nursery:
        await client.send_all(b"GET /gated HTTP/1.1\r\n" + KEEP)
        await read_until(client, b"first")
        nursery.start_soon(send_much, client)
        # Sender and reader may both wait for the kernel for a moment.
        await wait_all_tasks_blocked(cushion=0.02)
        assert not has_sent.is_set()
        state.gate.set()
        await read_until(client, b"last\r\n0\r\n\r\n")
        nursery.cancel_scope.cancel()


async def test_pipelined_requests_are_answered_in_turn(
    server: Server,
) -> None:
    upload = b"POST /echo HTTP/1.1\r\nContent-Length: %d\r\n" % 300_000
    answer = await server.ask(
        (HEALTH + KEEP) * 20
        + upload
        + KEEP
        + bytes(300_000)
        + b"GET /events HTTP/1.1\r\n"
        + CLOSE
    )
    assert answer.count(b"well") == 20
    assert answer.index(bytes(300_000)) < answer.index(b"data: 0")
    assert answer.endswith(b"data: 2\n\n\r\n0\r\n\r\n")


async def test_bytes_after_the_last_request_keep_no_connection_open(
    start_server: StartServer,
) -> None:
    server = await start_server(graceful_timeout_seconds=60.0)
    answer = await server.ask(HEALTH + CLOSE + bytes(300_000))
    assert answer.endswith(b"well")
    server.stop.set()
    await server.stopped.wait()


async def test_a_refusal_reaches_a_client_that_is_still_uploading(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trioserve.http.connection.server.LINGER_SECONDS", 60.0)
    upload = b"POST /echo HTTP/1.1\r\nContent-Length: %d\r\n" % 2**24
    answer = await server.ask(upload + KEEP + bytes(2**24))
    assert answer.startswith(b"HTTP/1.1 413")


async def connect_tls(
    server: Server, certificate: Path, protocol: str = "http/1.1"
) -> trio.SSLStream[trio.SocketStream]:
    context = ssl.create_default_context(cafile=certificate / "fullchain.pem")
    context.set_alpn_protocols([protocol])
    stream = trio.SSLStream(
        await server.connect(),
        context,
        server_hostname="localhost",
        https_compatible=True,
    )
    await stream.do_handshake()
    return stream


async def test_tls_streams_arrive_whole_and_end(
    start_server: StartServer, certificate: Path
) -> None:
    server = await start_server(certificate=certificate)
    async with await connect_tls(server, certificate) as client:
        await client.send_all(HEALTH + KEEP + b"GET /large HTTP/1.1\r\n" + KEEP)
        await read_until(client, LARGE[-8:])
        await client.send_all(b"GET /events HTTP/1.1\r\n" + CLOSE)
        answer = await read_all(client)
    assert answer.endswith(b"data: 2\n\n\r\n0\r\n\r\n")


@pytest.fixture
def client_kind(request: pytest.FixtureRequest) -> Path | None:
    """None for plain HTTP, or the certificate for TLS."""
    if request.param == "plain":
        return None
    path: Path = request.getfixturevalue("certificate")
    return path


def kinds(name: str, *cells: tuple[str, object]) -> pytest.MarkDecorator:
    """Cells of client_kind and of another parameter."""
    return pytest.mark.parametrize(
        ("client_kind", name), cells, indirect=["client_kind"]
    )


async def connect(server: Server, certificate: Path | None) -> trio.abc.Stream:
    if certificate is None:
        return await server.connect()
    return await connect_tls(server, certificate)


@kinds("is_half_closed", ("plain", False), ("plain", True), ("TLS", False))
async def test_a_client_that_never_reads_does_not_hold_up_the_exit(
    start_server: StartServer,
    state: AppState,
    client_kind: Path | None,
    is_half_closed: bool,
) -> None:
    server = await start_server(certificate=client_kind, graceful_timeout_seconds=0.05)
    async with await connect(server, client_kind) as client:
        await client.send_all(b"GET /endless HTTP/1.1\r\n" + KEEP)
        await wait_all_tasks_blocked()
        if is_half_closed and isinstance(client, trio.SocketStream):
            await client.send_eof()
        server.stop.set()
        await server.stopped.wait()
        await trio.aclose_forcefully(client)
    assert state.left.is_set()


@kinds("extra", ("plain", b""), ("TLS", b""), ("plain", bytes(200_000)))
async def test_a_client_that_never_reads_is_dropped(
    start_server: StartServer, state: AppState, client_kind: Path | None, extra: bytes
) -> None:
    server = await start_server(certificate=client_kind, write_timeout_seconds=0.1)
    async with await connect(server, client_kind) as client:
        await client.send_all(b"GET /endless HTTP/1.1\r\n" + KEEP + extra)
        await state.left.wait()
        await trio.aclose_forcefully(client)


async def test_requests_may_end_after_the_shutdown_trigger(
    start_server: StartServer,
    state: AppState,
) -> None:
    server = await start_server(graceful_timeout_seconds=60.0)
    async with await server.connect() as client, await server.connect():
        await client.send_all(b"GET /gated HTTP/1.1\r\n" + KEEP)
        await read_until(client, b"first")
        server.stop.set()
        await wait_all_tasks_blocked()
        assert not server.stopped.is_set()
        state.gate.set()
        assert (await read_all(client)).endswith(b"last\r\n0\r\n\r\n")
        await server.stopped.wait()


async def answer(send: Any, *, status: int = 200, **start: Any) -> None:
    head = {"type": "http.response.start", "status": status, "headers": []} | start
    await send(head)
    await send({"type": "http.response.body", "body": b"well", "more_body": False})


async def cancel_at_response_start(send: Any) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await answer(send)


async def send_body_first(send: Any) -> None:
    await send({"type": "http.response.body", "body": b"well"})


async def raise_group(send: Any) -> None:
    await answer(send)
    raise ExceptionGroup("several", [ValueError("a"), KeyError("b")])


FAULTS: dict[str, Callable[[Any], Awaitable[None]]] = {
    "cancel-at-response-start": cancel_at_response_start,
    "status-101": partial(answer, status=101),
    "status-9999": partial(answer, status=9999),
    "line-end-in-header": partial(answer, headers=[(b"x", b"a\r\nb")]),
    "text-header": partial(answer, headers=[("x", "y")]),
    "body-first": send_body_first,
    "group": raise_group,
}


async def faulty_app(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http", "no lifespan"
    await FAULTS.get(scope["path"][1:], answer)(send)


@kinds("fault", *(("plain", fault) for fault in FAULTS), ("TLS", "group"))
async def test_an_app_that_breaks_the_protocol_breaks_one_connection(
    start_server: StartServer, client_kind: Path | None, fault: str
) -> None:
    server = await start_server(faulty_app, certificate=client_kind)
    for path in [fault, "health"]:
        async with await connect(server, client_kind) as client:
            await client.send_all(b"GET /%s HTTP/1.1\r\n" % path.encode() + CLOSE)
            answer = await read_all(client)
    assert b"well" in answer


async def test_an_unforeseen_error_is_logged_once_and_ends_one_connection(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    # hypercorn decodes the host only to compare it with server_names.
    server = await start_server(server_names=["h"])
    assert await server.ask(b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n") == b""
    assert b"well" in await server.ask(HEALTH + CLOSE)
    errors = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert errors == ["a connection failed and was closed"]


async def test_system_exit_is_not_taken_for_a_connection_error() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http", "no lifespan"
        await receive()
        raise SystemExit(3)

    with pytest.RaisesGroup(
        pytest.RaisesExc(SystemExit, match="3"), flatten_subgroups=True
    ):
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                port = await raw_http.serve_app(nursery, app)
                await raw_http.ask(port, HEALTH + CLOSE)


async def reset_a_stream(client: Http2Client, state: AppState) -> None:
    await client.request(3, "/endless")
    await client.wait_body(3, bytes(9))
    client.connection.reset_stream(3)
    await client.flush()
    await state.left.wait()


async def send_a_body_after_its_answer(client: Http2Client, state: AppState) -> None:
    await client.request(3, "/nowhere", "POST")
    await client.wait_end(3)
    client.connection.send_data(3, b"late", end_stream=True)
    await client.flush()


async def send_a_path_with_a_high_byte(client: Http2Client, state: AppState) -> None:
    await client.request(3, b"/\xff")
    assert await client.wait_end(3) is h2.events.StreamReset


async def ask_for_a_tunnel(client: Http2Client, state: AppState) -> None:
    client.connection.send_headers(3, [(":method", "CONNECT"), (":authority", "h")])
    await client.flush()
    assert await client.wait_end(3) is h2.events.StreamReset


@pytest.mark.parametrize(
    "disturb",
    [
        reset_a_stream,
        send_a_body_after_its_answer,
        send_a_path_with_a_high_byte,
        ask_for_a_tunnel,
    ],
)
async def test_an_http2_stream_does_not_hurt_its_neighbour(
    start_server: StartServer,
    state: AppState,
    disturb: Callable[[Http2Client, AppState], Awaitable[None]],
) -> None:
    server = await start_server(enable_h2c=True)
    async with await server.connect() as stream:
        client = Http2Client(stream)
        await client.request(1, "/gated")
        await client.wait_body(1, b"first")
        await disturb(client, state)
        state.gate.set()
        assert await client.wait_end(1) is h2.events.StreamEnded
    assert client.bodies[1] == b"firstlast"


async def test_http2_frames_of_several_writers_do_not_mix(
    start_server: StartServer,
) -> None:
    server = await start_server(enable_h2c=True)
    async with await server.connect() as stream:
        client = Http2Client(stream)
        client.connection.increment_flow_control_window(2**24)
        await client.request(1, "/large")
        client.connection.increment_flow_control_window(2**24, stream_id=1)
        while not client.has_ended(1):
            # The server answers the ping just when the kernel has room again for
            # the queued bytes.
            client.connection.ping(b"whatever")
            await client.receive()
    assert client.bodies[1] == LARGE


async def test_an_http2_request_cancelled_as_it_answers_harms_no_other(
    start_server: StartServer, certificate: Path
) -> None:
    server = await start_server(faulty_app, certificate=certificate)
    async with await connect_tls(server, certificate, "h2") as stream:
        client = Http2Client(stream)
        await client.request(1, "/cancel-at-response-start")
        await client.request(3, "/health")
        await client.wait_end(3)
    assert client.bodies[3] == b"well"


async def test_a_client_that_pings_and_never_reads_does_not_hold_up_the_exit(
    start_server: StartServer,
) -> None:
    pings = INPUTS["HTTP/2: ping flood"].removeprefix(INPUTS["HTTP/2: preface alone"])
    server = await start_server(enable_h2c=True, graceful_timeout_seconds=0.05)
    async with await server.connect() as client, trio.open_nursery() as nursery:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        await client.send_all(INPUTS["HTTP/2: preface alone"])
        nursery.start_soon(send_for_ever, client, pings)
        await wait_all_tasks_blocked()
        server.stop.set()
        await server.stopped.wait()
        nursery.cancel_scope.cancel()


async def send_for_ever(client: trio.SocketStream, data: bytes) -> None:
    with contextlib.suppress(trio.BrokenResourceError):
        while True:
            await client.send_all(data)


@pytest.mark.skipif(sys.platform != "linux", reason="an option of Linux")
async def test_the_kernel_detects_dead_peers(
    start_server: StartServer,
) -> None:
    server = await start_server(write_timeout_seconds=7.5)
    async with await server.connect() as client:
        await client.send_all(HEALTH + KEEP)
        await read_until(client, b"well")
        accepted = accepted_from(client)
        assert accepted is not None
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert accepted.getsockopt(socket.SOL_TCP, socket.TCP_USER_TIMEOUT) == 7500


async def test_a_unix_socket_is_served(nursery: trio.Nursery, tmp_path: Path) -> None:
    install_guard()
    path = tmp_path / "socket"
    with trio.fail_after(20):
        config = make_config(bind=[f"unix:{path}"])
        await nursery.start(partial(serve, make_app(AppState()), config))
        async with await trio.open_unix_socket(path) as client:
            await client.send_all(HEALTH + CLOSE)
            assert (await read_all(client)).endswith(b"well")


def test_the_guard_may_be_installed_twice() -> None:
    install_guard()
    guarded = hypercorn.trio.run.TCPServer
    install_guard(enable_h2c=True)
    assert hypercorn.trio.run.TCPServer is guarded


@pytest.mark.parametrize(
    "place",
    [
        "hypercorn.trio.run.TCPServer",
        "hypercorn.trio.tcp_server.TCPServer._read_data",
        "hypercorn.protocol.h2.H2Protocol._flush",
    ],
)
def test_a_name_that_hypercorn_no_longer_has_is_named(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.delattr(place)
    with pytest.raises(StartupError, match=place.rpartition(".")[2]):
        install_guard()


def test_a_function_that_takes_something_else_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = hypercorn.trio.tcp_server.TCPServer
    monkeypatch.setattr(server, "protocol_send", lambda self, event, more: None)
    with pytest.raises(StartupError, match="protocol_send"):
        install_guard()


@pytest.mark.parametrize(
    ("package", "release"), [("h11", "0.16"), ("hypercorn", "0.18")]
)
def test_another_release_is_refused(
    monkeypatch: pytest.MonkeyPatch, package: str, release: str
) -> None:
    monkeypatch.setattr(
        "trioserve.http.connection.guard.version",
        lambda name: "0.99.1" if name == package else version(name),
    )
    with pytest.raises(StartupError, match=f"{release} is needed, but 0.99.1"):
        install_guard()


GUARDED_MODULE = """
from quart_trio import QuartTrio
from trioserve.http.connection import install_guard

install_guard()
app = QuartTrio("test")


@app.get("/health")
async def health():
    return "well"
"""


@pytest.mark.slow
async def test_the_plain_hypercorn_command_is_guarded_by_an_app_that_installs_it(
    tmp_path: Path,
) -> None:
    with trio.fail_after(60):
        async with raw_http.open_hypercorn(tmp_path, GUARDED_MODULE) as (_, port, _):
            server = Server(port, trio.Event(), trio.Event())
            for name in ["HTTP/1: websocket upgrade and one byte", "HTTP/2: goaway"]:
                async with await server.connect() as stranger:
                    await stranger.send_all(INPUTS[name])
                    await stranger.receive_some()
            assert (await server.ask(HEALTH + CLOSE)).endswith(b"well")
