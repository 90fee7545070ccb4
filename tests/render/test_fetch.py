"""Images are fetched over real sockets, from servers that may answer anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
import gzip
import socket
from typing import Any

import pytest
import trio

from trioserve.config import MediaConfig
from trioserve.errors import InvalidConfig, InvalidParameter
from trioserve.render.images.address import IPAddress
from trioserve.render.images.fetch import ImageFetcher

# Seconds; no test takes that long.
LIMIT = 30

# The first byte of a TLS handshake (RFC 8446, 5.1).
TLS = b"\x16"

BODY = b"any bytes: the fetcher does not look into them"

CONFIG = MediaConfig(
    allowed_media_domains=("127.0.0.1",), max_image_bytes="100000", media_timeout=LIMIT
)


def is_loopback(address: IPAddress) -> bool:
    return address.is_loopback


def make_fetcher(**changes: object) -> ImageFetcher:
    config = replace(CONFIG, **changes)
    return ImageFetcher(config, is_allowed_address=is_loopback)


async def fetch(url: str, **changes: object) -> bytes:
    with trio.fail_after(LIMIT):
        return await make_fetcher(**changes).fetch(url, param="messages[0]")


async def refuse(url: str, **changes: object) -> str:
    with pytest.raises(InvalidParameter) as refused:
        await fetch(url, **changes)
    assert refused.value.param == "messages[0]"
    return str(refused.value)


class NoNames(trio.abc.HostnameResolver):
    """A DNS without any names, so that no test uses the machine's."""

    async def getaddrinfo(self, *question: object) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    async def getnameinfo(self, *question: object) -> tuple[str, str]:
        raise NotImplementedError


@dataclass(kw_only=True)
class WebServer:
    """Answers each path with the bytes that a test gives, and closes.

    Without bytes for a path, it sends nothing and waits until the client leaves.
    """

    answers: dict[str, bytes] = field(default_factory=dict)
    requests: list[bytes] = field(default_factory=list)
    client_left: trio.Event = field(default_factory=trio.Event)
    port: int = 0

    def url(self, path: str = "/", *, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def handle(self, stream: trio.SocketStream) -> None:
        request = b""
        while b"\r\n\r\n" not in request and not request.startswith(TLS):
            request += await stream.receive_some()
        self.requests.append(request)
        path = request.split(b" ")[1].decode() if request[0] > 32 else "TLS"
        if (answer := self.answers.get(path)) is not None:
            try:
                await stream.send_all(answer)
            except trio.BrokenResourceError:
                self.client_left.set()
        elif await stream.receive_some() == b"":
            self.client_left.set()


@pytest.fixture
async def server(nursery: trio.Nursery) -> AsyncIterator[WebServer]:
    server = WebServer()
    (listener,) = await nursery.start(
        partial(trio.serve_tcp, server.handle, 0, host="127.0.0.1")
    )
    server.port = listener.socket.getsockname()[1]
    yield server
    nursery.cancel_scope.cancel()


def answer(body: bytes = BODY, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", *(headers or [f"Content-Length: {len(body)}"])]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def redirect(location: str, status: str = "302 Found") -> bytes:
    return answer(b"", f"Location: {location}", "Content-Length: 0", status=status)


async def test_an_image_is_fetched(server: WebServer) -> None:
    server.answers["/a%20b?c=d"] = answer()
    assert await fetch(server.url("/a%20b?c=d#e")) == BODY


async def test_a_request_reveals_nothing_of_its_server(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no cookies and no credentials, and ignores proxies of the environment."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    server.answers["/1"] = answer(
        b"", "Set-Cookie: a=b", "Location: /2", status="307 Temporary Redirect"
    )
    server.answers["/2"] = answer()
    assert await fetch(server.url("/1")) == BODY
    _, second = server.requests
    assert second.decode().split("\r\n") == [
        "GET /2 HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        "Accept: image/*",
        "Accept-Encoding: identity",
        "User-Agent: trioserve",
        *("", ""),
    ]


async def test_only_allowed_hosts_are_contacted() -> None:
    for url in (
        "http://elsewhere.test/a.png",
        "https://elsewhere.test/a.png",
        # The allowed host is in another part of the URL.
        "http://elsewhere.test/127.0.0.1",
        "http://elsewhere.test?127.0.0.1",
        "http://elsewhere.test#127.0.0.1",
        "http://127.0.0.1.elsewhere.test/",
        "http://127.0.0.1%2eelsewhere.test/",
        "http://127.0.0.1%23@elsewhere.test/",
        # Other spellings of an allowed host are other hosts.
        "http://2130706433/",
        "http://0x7f.0.0.1/",
        "http://127.1/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http:///a.png",
        "http:a.png",
    ):
        text = await refuse(url)
        assert "is at a host from which" in text or "user name" in text, url


async def test_a_text_that_parsers_read_differently_is_no_url() -> None:
    for url in (
        # Two parsers may find different hosts in these.
        "http://127.0.0.1\\@elsewhere.test/",
        "http://elsewhere.test\\@127.0.0.1/",
        "http://127.0.0.1\t.elsewhere.test/",
        "http://127.0.0.1\n/",
        "http://127.0.0.1 .elsewhere.test/",
        " http://127.0.0.1/",
        "http://127.0.0.1\x00/",
        "http://127.0.0.1:port/",
        "http://127.0.0.1:0/",
        "http://127.0.0.1:65536/",
        "http://127.0.0.1:-1/",
        "http://1.2.3.999/",
        "http://[::g]/",
        "http://127.0.0.1/" + "a" * 8192,
    ):
        assert "is not a URL" in await refuse(url)


async def test_a_password_is_refused_and_not_repeated() -> None:
    text = await refuse("http://user:secret@127.0.0.1/")
    assert "password" in text and "secret" not in text


DOT = ("pictures.example", "PICTURES.example.", "pictures.example:8080")
IDNA = ("bücher.example", "BÜCHER.example", "xn--bcher-kva.example")


@pytest.mark.parametrize(
    ("domain", "hosts"),
    [
        *(("Pictures.Example", DOT), ("pictures.example.", DOT)),
        *(("bücher.example", IDNA), ("xn--bcher-kva.example", IDNA)),
    ],
)
async def test_an_allowed_host_is_the_same_in_all_spellings(
    domain: str, hosts: tuple[str, ...]
) -> None:
    trio.socket.set_custom_hostname_resolver(NoNames())
    for host in hosts:
        text = await refuse(f"http://{host}/", allowed_media_domains=(domain,))
        assert "cannot be fetched" in text


def test_a_domain_that_is_no_host_is_refused_at_start() -> None:
    for domain in (
        *("", "http://a.example", "a.example/b", "a.example:80", "u@a.example"),
        *("*.example", "*", "a b", "[1", "[::g]", "1.2.3.999", "a%2eb"),
    ):
        with pytest.raises(InvalidConfig) as refused:
            make_fetcher(allowed_media_domains=(domain,))
        assert refused.value.field == "allowed_media_domains", domain


async def test_a_private_address_is_never_contacted(server: WebServer) -> None:
    def is_nothing(address: IPAddress) -> bool:
        return False

    fetcher = ImageFetcher(CONFIG, is_allowed_address=is_nothing)
    with trio.fail_after(LIMIT), pytest.raises(InvalidParameter) as refused:
        await fetcher.fetch(server.url(), param="x")
    assert str(refused.value) == "x: cannot be fetched"
    assert server.requests == []


@pytest.mark.parametrize(
    "status",
    [
        *("301 Moved Permanently", "302 Found", "303 See Other"),
        *("307 Temporary Redirect", "308 Permanent Redirect"),
    ],
)
async def test_redirects_are_followed(server: WebServer, status: str) -> None:
    server.answers["/1/2"] = redirect("../3", status)
    server.answers["/3"] = redirect(server.url("/4"), status)
    server.answers["/4"] = redirect(f"//127.0.0.1:{server.port}/ü", status)
    server.answers["/%C3%BC"] = answer()
    assert await fetch(server.url("/1/2")) == BODY


async def test_a_fourth_redirect_is_not_followed(server: WebServer) -> None:
    server.answers["/"] = redirect("/")
    assert "more than 3" in await refuse(server.url())
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    "location",
    [
        "http://elsewhere.test/",
        "//elsewhere.test/",
        "http://localhost/",
        "https://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "data:image/png;base64,AAAA",
        "ftp://127.0.0.1/",
        "http://user@127.0.0.1/",
        "\\\\elsewhere.test\\",
        "http://127.0.0.1:99999/",
        "http://[::1/",
        "http://127.0.0.1/" + "a" * 8192,
    ],
)
async def test_a_redirect_is_checked_like_the_url(
    server: WebServer, location: str
) -> None:
    server.answers["/"] = redirect(location)
    assert "cannot be fetched" not in await refuse(server.url())
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "status",
    # The last one leads nowhere.
    ["404 Not Found", "500 Oops", "204 No Content", "206 Part", "302 Found"],
)
async def test_only_200_is_an_image(server: WebServer, status: str) -> None:
    server.answers["/"] = answer(b"secret", status=status)
    text = await refuse(server.url())
    assert status.split()[0] in text and "secret" not in text


async def test_a_compressed_body_is_refused(server: WebServer) -> None:
    server.answers["/"] = answer(gzip.compress(BODY), "Content-Encoding: gzip")
    assert "content encoding" in await refuse(server.url())


async def test_a_body_may_be_as_long_as_the_limit_and_no_longer(
    server: WebServer,
) -> None:
    server.answers["/most"] = answer(bytes(100_000))
    server.answers["/more"] = answer(bytes(100_001))
    # Without a length the body ends with the connection.
    server.answers["/untold"] = answer(bytes(100_001), "Content-Type: image/png")
    chunk = b"ffff\r\n" + bytes(0xFFFF) + b"\r\n"
    server.answers["/chunks"] = answer(chunk * 9, "Transfer-Encoding: chunked")
    assert await fetch(server.url("/most")) == bytes(100_000)
    for path in ("/more", "/untold", "/chunks"):
        assert "more than 100000 bytes" in await refuse(server.url(path))


async def test_a_body_without_an_end_is_left_at_the_limit(server: WebServer) -> None:
    server.answers["/"] = answer(bytes(50_000_000), "Content-Type: image/png")
    assert "more than 100000 bytes" in await refuse(server.url())
    with trio.fail_after(LIMIT):
        await server.client_left.wait()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\xff" * 100,
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
async def test_a_broken_answer_is_no_image(server: WebServer, raw: bytes) -> None:
    server.answers["/"] = raw
    assert await refuse(server.url()) == "messages[0]: cannot be fetched"


async def test_a_server_that_does_not_answer_is_given_up_in_time(
    server: WebServer,
) -> None:
    assert "took longer than 0.25 s" in await refuse(server.url(), media_timeout=0.25)
    with trio.fail_after(LIMIT):
        await server.client_left.wait()


class NoDns(NoNames):
    """A DNS that never answers."""

    async def getaddrinfo(self, *question: object) -> list[Any]:
        return await trio.sleep_forever()


async def test_a_name_that_is_never_resolved_is_given_up_in_time() -> None:
    trio.socket.set_custom_hostname_resolver(NoDns())
    domains = ("slow.test",)
    text = await refuse(
        "http://slow.test/", allowed_media_domains=domains, media_timeout=0.25
    )
    assert "took longer than 0.25 s" in text


async def test_the_error_for_a_closed_port_does_not_name_the_address(
    server: WebServer,
) -> None:
    text = await refuse("http://127.0.0.1:1/")
    assert text == "messages[0]: cannot be fetched"


async def test_https_asks_for_the_name_and_not_for_the_address(
    server: WebServer,
) -> None:
    """The handshake names the server; the server's answer is not a certificate."""
    server.answers["TLS"] = b"no TLS"
    url = server.url(host="localhost").replace("http:", "https:")
    text = await refuse(url, allowed_media_domains=("localhost",))
    assert text == "messages[0]: cannot be fetched"
    (hello,) = server.requests
    assert hello.startswith(TLS) and b"localhost" in hello


async def test_a_tls_handshake_that_does_not_end_is_given_up_in_time(
    server: WebServer,
) -> None:
    url = server.url().replace("http:", "https:")
    assert "took longer" in await refuse(url, media_timeout=0.5)
    with trio.fail_after(LIMIT):
        await server.client_left.wait()
