"""A page cannot reach a server without keys by leading its name to this machine."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest
import trio

from trioserve.config import HttpConfig
from trioserve.http.wire.origins import AllowedHosts
from trioserve.testing.server import FakeServer

OWN = [
    *("", "localhost", "LocalHost:8000", "localhost.", "localhost.:80", "a.localhost"),
    *(
        "127.0.0.1",
        "127.0.0.1:8000",
        "10.0.0.1",
        "[::1]",
        "[::1]:8000",
        "[fe80::1%25eth0]",
    ),
    *("[::ffff:127.0.0.1]:1", "::1"),
]
FOREIGN = [
    *(
        "evil.example",
        "EVIL.example:8000",
        "evil.example.",
        "h",
        "localhost.evil.example",
    ),
    *("127.0.0.1.evil.example", "evil.example:127.0.0.1", "[evil.example]"),
    *(
        "a@localhost",
        "localhost@evil.example",
        "localhost, evil.example",
        "\xe9",
        "2130706433",
    ),
]


def find(config: HttpConfig, host: str | None, **scope: object) -> str | None:
    fields = [] if host is None else [(b"host", host.encode("latin-1"))]
    whole: Any = {"scheme": "http", "server": ("127.0.0.1", 8000), "headers": fields}
    return AllowedHosts(config).find_foreign(whole | scope)


@pytest.mark.parametrize("host", [None, *OWN])
def test_localhost_and_addresses_are_taken(host: str | None) -> None:
    assert find(HttpConfig(), host) is None
    assert find(HttpConfig(allowed_host=("llm.example",)), host) is None


@pytest.mark.parametrize("host", FOREIGN)
def test_other_names_are_not(host: str) -> None:
    assert find(HttpConfig(), host) is not None
    assert find(HttpConfig(allowed_host=("llm.example",)), host) is not None
    assert find(HttpConfig(allowed_host=("*",)), host) is None


@pytest.mark.parametrize(
    ("server", "is_checked"),
    [
        (("127.0.0.1", 80), True),
        (("127.1.2.3", 80), True),
        (("::1", 80), True),
        (("::ffff:127.0.0.1", 80), True),
        (("10.0.0.1", 80), False),
        (("fe80::1%eth0", 80), False),
        (None, False),
    ],
)
def test_by_default_names_are_checked_over_loopback_without_a_key_and_tls(
    server: object, is_checked: bool
) -> None:
    host = "evil.example"
    assert (find(HttpConfig(), host, server=server) is not None) == is_checked
    assert find(HttpConfig(), host, server=server, scheme="https") is None
    assert find(HttpConfig(api_key=("sk-a",)), host, server=server) is None
    assert find(HttpConfig(api_key_file="keys"), host, server=server) is None


def test_with_names_every_request_is_checked() -> None:
    config = HttpConfig(allowed_host=("LLM.example", "llm"), api_key=("sk-a",))
    for server in (("10.0.0.1", 80), None):
        scope: Any = {"server": server, "scheme": "https"}
        for host in ("llm", "llm.example:8000", "Llm.Example."):
            assert find(config, host, **scope) is None
        assert find(config, "evil.example", **scope) == "evil.example"


@pytest.mark.parametrize("is_http2", [False, True])
@pytest.mark.server(http=HttpConfig(enable_h2c=True))
async def test_a_foreign_name_is_answered_421(
    server: FakeServer, is_http2: bool
) -> None:
    server.state.hosts = AllowedHosts(HttpConfig())
    headers = {"Host": "evil.example:8000"}
    with trio.fail_after(60):
        async with httpx.AsyncClient(
            base_url=server.url, http1=not is_http2, http2=is_http2
        ) as client:
            for method, path in (
                *(("GET", "/health"), ("GET", "/metrics"), ("GET", "/")),
                *(("DELETE", "/v1/requests"), ("POST", "/v1/completions")),
                *(("OPTIONS", "/v1/requests"), ("GET", "/nowhere")),
            ):
                answer = await client.request(method, path, headers=headers)
                assert answer.status_code == 421
                error = answer.json()["error"]
                assert error["type"] == "MisdirectedRequest"
                assert "'evil.example'" in error["message"]
                assert "--allowed-host" in error["message"]
            if not is_http2:
                # RFC 9112, 3.2.2: the name in a whole address counts.
                request = (
                    b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n"
                )
                async with await trio.open_tcp_stream(
                    "127.0.0.1", server.port
                ) as stream:
                    await stream.send_all(request)
                    assert b" 421 " in await stream.receive_some()
            for path in ("/health", "/v1/requests", "/"):
                assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "a..localhost"])
async def test_no_host_is_a_fault_of_the_server(
    client: httpx.AsyncClient, host: str
) -> None:
    """Werkzeug fails at labels that are empty or long, and would log that for any stranger."""
    for path in ("/livez", "/v1/requests", "/nowhere"):
        answer = await client.get(path, headers={"Host": host})
        assert answer.status_code == (404 if path == "/nowhere" else 200)
