"""`trioserve top` asks servers over TCP, TLS and Unix sockets, and explains failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
import json
from pathlib import Path
import socketserver
import ssl
import threading
from typing import Any

import pytest

from trioserve.__main__ import main
from trioserve.config import RemoteConfig, build_config
from trioserve.errors import InvalidConfig
from trioserve.programs.top import TopConfig
from trioserve.programs.top.client import Client, TopError

REQUEST = {
    "id": "a b",
    "object": "request",
    "method": "POST",
    "path": "/v1/completions",
    "key": "ann",
    "phase": "decode",
    "age_seconds": 2.5,
    "timeout_seconds": None,
    "prompt_tokens": 3,
    "completion_tokens": 4,
}
LIST = {"object": "list", "data": [REQUEST]}
NO_REQUEST = {"error": {"message": "No request with the id 'x' is being answered."}}


AWAKE = b'{"is_sleeping": false}'


class Server:
    """Answers each request with the same status and body; its engine is awake."""

    def __init__(self) -> None:
        self.status = 200
        self.body = json.dumps(LIST).encode()
        self.seen: list[tuple[str, str, str | None]] = []

    def make_handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                key = self.headers["Authorization"]
                server.seen.append((self.command, self.path, key))
                body = AWAKE if self.path == "/is_sleeping" else server.body
                self.send_response(server.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_DELETE = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

            def address_string(self) -> str:
                return ""

        return Handler


@contextmanager
def serve(listener: socketserver.BaseServer) -> Iterator[None]:
    with listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            listener.shutdown()
            thread.join()


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    listener = socketserver.TCPServer(("127.0.0.1", 0), server.make_handler())
    with serve(listener):
        yield f"http://127.0.0.1:{listener.server_address[1]}"


def test_of_several_models_the_states_are_told(server: Server, url: str) -> None:
    client = Client(RemoteConfig(url=url))
    # A server of one model, which is asked once whether it has several.
    assert client.describe_engines() == client.describe_engines() == ""
    assert [path for _, path, _ in server.seen] == [
        *("/v1/models", "/is_sleeping", "/is_sleeping")
    ]
    cards = [
        {"id": "chat", "parent": None, "status": {"value": "sleeping"}},
        {"id": "french", "parent": "chat", "status": {"value": "sleeping"}},
        {"id": "embed", "parent": None, "status": {"value": "unloaded"}},
        {"id": "tiny", "parent": None, "status": {"value": "loaded"}},
    ]
    server.body = json.dumps({"data": cards}).encode()
    several = Client(RemoteConfig(url=url))
    assert several.describe_engines() == "chat sleeping, tiny loaded"


def test_requests_are_listed_and_cancelled(server: Server, url: str) -> None:
    client = Client(RemoteConfig(url=url, api_key="sk-a"))
    [request] = client.list_requests()
    assert (request.id, request.age_seconds, request.key) == ("a b", 2.5, "ann")
    assert client.cancel("a b/c") == 1
    assert client.cancel_all() == 1
    assert server.seen == [
        ("GET", "/v1/requests", "Bearer sk-a"),
        ("DELETE", "/v1/requests/a%20b%2Fc", "Bearer sk-a"),
        ("DELETE", "/v1/requests", "Bearer sk-a"),
    ]
    server.status, server.body = 404, json.dumps(NO_REQUEST).encode()
    assert client.cancel("x") == 0
    assert client.find_details("x") == []


@pytest.mark.parametrize("path", ["/base", "/base/", "/base/v1"])
def test_a_server_below_a_path(server: Server, url: str, path: str) -> None:
    Client(RemoteConfig(url=url + path)).list_requests()
    assert server.seen == [("GET", "/base/v1/requests", None)]


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, b"{}", "{url} wants a key: --api-key or --api-key-file"),
        (404, b"<html>", "{url} answers 404: no reason"),
        (503, b'{"error": {"message": "It stops."}}', "{url} answers 503: It stops."),
        (
            503,
            b'{"error": {"message": "\\u001b[2J\\u009b"}}',
            "{url} answers 503: \\x1b[2J\\x9b",
        ),
        (200, b'{"data": 3}', "{url} is not a trioserve server"),
        (200, b"\xff", "{url} is not a trioserve server"),
    ],
)
def test_failures_are_explained(
    server: Server,
    url: str,
    status: int,
    body: bytes,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.status, server.body = status, body
    assert main(["top", "--once", "--url", url]) == 1
    assert capsys.readouterr().err == f"trioserve: {message.format(url=url)}\n"


def test_a_wrong_key_is_told(server: Server, url: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("sk-wrong\n")
    server.status = 401
    with pytest.raises(TopError, match="does not know this key"):
        Client(RemoteConfig(url=url, api_key_file=str(path))).list_requests()
    assert server.seen[0][2] == "Bearer sk-wrong"
    with pytest.raises(InvalidConfig, match="--api-key-file: cannot read"):
        Client(RemoteConfig(api_key_file=str(tmp_path / "none")))
    for text in ("# keys\nann sk-ann\n", "ann sk-ann", ""):
        path.write_text(text)
        with pytest.raises(InvalidConfig, match="--api-key-file: must have the key"):
            Client(RemoteConfig(api_key_file=str(path)))
    with pytest.raises(InvalidConfig, match="--api-key: a key has"):
        Client(RemoteConfig(api_key="a b"))


def test_a_server_that_is_away_is_told(tmp_path: Path) -> None:
    with pytest.raises(TopError, match="no server answers at http://127.0.0.1:1: "):
        Client(RemoteConfig(url="http://127.0.0.1:1")).list_requests()
    path = str(tmp_path / "socket")
    with pytest.raises(TopError, match=f"no server answers at {path}: No such file"):
        Client(RemoteConfig(uds=path)).list_requests()


def test_a_unix_socket(server: Server, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with serve(socketserver.UnixStreamServer(path, server.make_handler())):
        [request] = Client(RemoteConfig(uds=path)).list_requests()
    assert request.id == "a b"


def test_tls(server: Server, certificate: Path) -> None:
    listener = socketserver.ThreadingTCPServer(("127.0.0.1", 0), server.make_handler())
    listener.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca = str(certificate / "fullchain.pem")
    context.load_cert_chain(ca, certificate / "privkey.pem")
    listener.socket = context.wrap_socket(listener.socket, server_side=True)
    listener.handle_error = lambda *args: None  # type: ignore[method-assign]
    with serve(listener):
        port = listener.server_address[1]
        url = f"https://localhost:{port}"
        [request] = Client(RemoteConfig(url=url, tls_cafile=ca)).list_requests()
        assert request.id == "a b"
        with pytest.raises(TopError, match="is not trusted: self-signed certificate"):
            Client(RemoteConfig(url=url)).list_requests()
    with pytest.raises(InvalidConfig, match="--tls-cafile: cannot read"):
        Client(RemoteConfig(url=url, tls_cafile="/nowhere"))


def test_tls_is_not_spoken_to_a_plain_server(url: str) -> None:
    with pytest.raises(TopError, match="speaks no TLS"):
        Client(RemoteConfig(url=url.replace("http", "https"))).list_requests()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"url": "localhost:8000"}, "--url: must be like"),
    ({"url": "http://h:99999"}, "--url: must be like"),
    ({"url": "http://a..b"}, "--url: must be like"),
    ({"url": "http://.example.com"}, "--url: must be like"),
    ({"url": f"http://{'a' * 64}.com"}, "--url: must be like"),
    ({"url": "http://h/\xe9"}, "--url: must be like"),
    ({"interval": 0.0}, "--interval"),
    ({"api_key": "a", "api_key_file": "b"}, "--api-key: and --api-key-file"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        build_config(TopConfig, options)


def test_one_table_is_printed(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    # The output of a test is not a terminal.
    assert main(["top", "--url", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 request: 1 decode"
    assert lines[2].split() == [
        *("a", "b", "decode", "2.5s", "-", "3", "4", "ann", "/v1/completions")
    ]
