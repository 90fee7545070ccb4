"""Answers through the proxies that the environment names."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
import gc
import re
import sys
from urllib.parse import quote

import pytest
import trio

from trioserve.config import RemoteConfig
from trioserve.errors import MissingExtra
from trioserve.programs.chat.answers import AnswerFailed
from trioserve.programs.chat.remote import open_remote

from .conftest import END, CannedServer, make_answer, make_events

# Codes of RFC 1928 and RFC 1929.
NO_SECRET, WITH_SECRET = b"\x05\x01\x00", b"\x05\x01\x02"
CONNECT = b"\x05\x01\x00\x03"
CONNECTED = b"\x05\x00\x00\x01" + bytes(6)
REFUSED = b"\x05\x05\x00\x01" + bytes(6)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def ask(config: RemoteConfig) -> str:
    async with open_remote(config, None) as model:
        hello = [{"role": "user", "content": "Hello"}]
        async with model.open_answer(hello, {}) as pieces:
            return "".join([piece.text async for piece in pieces])


async def fail(config: RemoteConfig) -> str:
    with pytest.raises(AnswerFailed) as caught:
        await ask(config)
    return str(caught.value)


@pytest.mark.parametrize(
    ("before", "secret"),
    [("", None), ("http://", None), ("http://", "me:a b@"), ("", "me:ä:/")],
)
async def test_a_proxy_of_the_environment_is_asked(
    canned: CannedServer,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    secret: str | None,
) -> None:
    place = canned.url.removeprefix("http://")
    if secret is not None:
        user, _, password = secret.partition(":")
        place = f"{user}:{quote(password, safe='')}@{place}"
    monkeypatch.setenv("http_proxy", before + place)
    canned.answers["/chat/completions"] = make_answer(make_events("Hi", END))
    assert await ask(RemoteConfig(url="http://model.test")) == "Hi"
    for head, _ in canned.requests:
        assert " http://model.test/v1/" in head
        found = re.search("Proxy-Authorization: Basic (.*)\r", head)
        if secret is None:
            assert found is None
        else:
            assert found is not None
            assert base64.b64decode(found[1]) == secret.encode()


@pytest.mark.parametrize(
    "proxy", ["socks4://me:secret@127.0.0.1:1", "http://", "http://h:99999", "ü:1"]
)
async def test_a_proxy_that_cannot_be_used_is_explained(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    message = await fail(RemoteConfig(url="http://model.test"))
    assert message.startswith("http_proxy in the environment is not a proxy")
    assert "secret" not in message


class SocksProxy:
    """Leads every connection to one server.

    Args:
      replies: after each message of the client.

    Attributes:
      messages: of all clients.
    """

    def __init__(self, server: CannedServer, *replies: bytes) -> None:
        self.messages: list[bytes] = []
        self._server = server
        self._replies = replies

    async def handle(self, stream: trio.SocketStream) -> None:
        for reply in self._replies:
            self.messages.append(bytes(await stream.receive_some()))
            await stream.send_all(reply)
        if self._replies[-1] == CONNECTED:
            await self._server.handle(stream)
        else:
            await stream.aclose()


@asynccontextmanager
async def open_socks_proxy(proxy: SocksProxy) -> AsyncIterator[str]:
    """Yield its host and port."""
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, proxy.handle, 0, host="127.0.0.1")
        [listener] = await nursery.start(serve)
        yield f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
@pytest.mark.parametrize("variable", ["all_proxy", "ALL_PROXY", "http_proxy"])
async def test_a_socks_proxy_is_asked(
    canned: CannedServer,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    variable: str,
) -> None:
    canned.answers["/chat/completions"] = make_answer(make_events("Hi", END))
    proxy = SocksProxy(canned, b"\x05\x00", CONNECTED)
    async with open_socks_proxy(proxy) as place:
        monkeypatch.setenv(variable, f"{scheme}://{place}")
        assert await ask(RemoteConfig(url="http://b\u00fccher.test:81")) == "Hi"
    # The proxy finds the name, in ASCII.
    name = b"xn--bcher-kva.test"
    connect = CONNECT + bytes([len(name)]) + name + (81).to_bytes(2, "big")
    assert proxy.messages == 2 * [NO_SECRET, connect]


async def test_a_socks_proxy_gets_its_secret(
    canned: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    canned.answers["/chat/completions"] = make_answer(make_events("Hi", END))
    proxy = SocksProxy(canned, b"\x05\x02", b"\x01\x00", CONNECTED)
    async with open_socks_proxy(proxy) as place:
        monkeypatch.setenv("all_proxy", f"socks5://me:a%20b@{place}")
        assert await ask(RemoteConfig(url="http://model.test")) == "Hi"
    assert proxy.messages[:2] == [WITH_SECRET, b"\x01\x02me\x03a b"]


@pytest.mark.parametrize(
    ("replies", "reason"),
    [
        ([b"\x05\x00", REFUSED], "Proxy Server could not connect: Connection refused"),
        ([b"HTTP/1.1 400 Bad\r\n\r\n"], "all_proxy in the environment does not speak"),
        ([b"\x05\x00", b"\x05\x63\x00\x01" + bytes(6)], "does not speak SOCKS 5"),
        ([b""], "does not speak SOCKS 5"),
    ],
)
# httpcore2 leaves the socket of a failed handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_socks_proxy_that_refuses_is_explained(
    canned: CannedServer,
    monkeypatch: pytest.MonkeyPatch,
    replies: list[bytes],
    reason: str,
) -> None:
    async with open_socks_proxy(SocksProxy(canned, *replies)) as place:
        monkeypatch.setenv("all_proxy", f"socks5://{place}")
        assert reason in await fail(RemoteConfig(url="http://model.test"))
    gc.collect()


async def test_a_proxy_that_is_not_there_is_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("all_proxy", "socks5://me:secret@127.0.0.1:1")
    assert await fail(RemoteConfig(url="http://model.test")) == (
        "no server answers at http://model.test, asked through the proxy of all_proxy in "
        "the environment: Connection refused"
    )


async def test_a_missing_extra_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1080")
    monkeypatch.setitem(sys.modules, "socksio", None)
    with pytest.raises(MissingExtra) as caught:
        await ask(RemoteConfig(url="http://model.test"))
    assert str(caught.value) == (
        "the SOCKS proxy of all_proxy in the environment (unset it to use none) needs "
        "socksio, which is not installed: run pip install 'trioserve[socks]'"
    )


async def test_no_proxy_goes_straight(
    canned: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    canned.answers["/chat/completions"] = make_answer(make_events("Hi", END))
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1")
    assert await ask(RemoteConfig(url=canned.url)) == "Hi"
