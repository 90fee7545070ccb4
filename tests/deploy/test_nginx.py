"""nginx, with the configuration of deploy/, in front of servers with a fake device."""

from __future__ import annotations

from contextlib import AsyncExitStack
import json
from pathlib import Path
import re
import subprocess
from typing import Any

import httpx2 as httpx
import pytest
import trio

from trioserve.config import HttpConfig
from trioserve.config.checks import parse_bytes
from trioserve.testing.server import FakeServer, open_fake_server

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PATH = "/v1/completions"
SECONDS = 60


def test_the_docs_tell_how_a_distributions_service_runs_the_file() -> None:
    docs = (ROOT / "docs" / "deploying.rst").read_text()
    found = re.search(r"^    (sed .*?) > /etc/nginx/nginx\.conf$", docs, re.M | re.S)
    assert found is not None
    changed = subprocess.run(
        ["sh", "-c", found[1]], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE
    )
    used = re.sub(r"^\s*#.*$", "", changed.stdout, flags=re.M)
    assert not re.search(r"/dev/|/tmp/|trioserve-|listen \d{4}", used)
    for line in ("user www-data;", "pid /run/nginx.pid;", "listen 443 ssl http2;"):
        assert line in used


def client_of(nginx: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=nginx.url, verify=nginx.tls, timeout=SECONDS)


async def count_requests(server: FakeServer) -> int:
    async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as client:
        return len((await client.get("/v1/requests")).json()["data"])


async def test_an_event_passes_at_once_and_a_client_that_leaves_cancels(
    tokenizer_folder: Path, open_nginx: Any
) -> None:
    # 200 tokens take 100 seconds, so nothing of the stream's end can be there.
    body = {"prompt": "a", "max_tokens": 200, "stream": True}
    with trio.fail_after(SECONDS):
        async with open_fake_server(tokenizer_folder, step_seconds=0.5) as server:
            with open_nginx([server.port, server.port]) as nginx:
                async with client_of(nginx) as client:
                    with trio.CancelScope() as leaving:
                        async with client.stream("POST", PATH, json=body) as answer:
                            async for line in answer.aiter_lines():
                                if line.startswith("data: {"):
                                    assert await count_requests(server) == 1
                                    leaving.cancel()
                    assert leaving.cancelled_caught
                    while await count_requests(server) != 0:
                        await trio.sleep(0.02)
            assert server.engine.statistics().num_streams == 0


async def test_ids_pass_and_get_into_the_log(
    tokenizer_folder: Path, open_nginx: Any
) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    with trio.fail_after(SECONDS):
        async with open_fake_server(tokenizer_folder) as server:
            with open_nginx([server.port, server.port]) as nginx:
                async with client_of(nginx) as client:
                    mine = {"x-request-id": "my-own-id"}
                    answer = await client.post(PATH, json=body, headers=mine)
                    assert answer.headers["x-request-id"] == "my-own-id"
                    answer = await client.post(PATH, json=body)
                    number = answer.headers["x-request-id"]
                    assert re.fullmatch("[0-9a-f]{32}", number)
                    # nginx logs an answer after it has sent it.
                    line = f"id {number}, replica 127.0.0.1:{server.port} 200"
                    # nginx logs an answer after it has sent it.
                    while line not in nginx.read_access_log():
                        await trio.sleep(0.02)


async def test_what_is_not_for_the_public_is_not_there(
    tokenizer_folder: Path, open_nginx: Any
) -> None:
    with trio.fail_after(SECONDS):
        async with open_fake_server(tokenizer_folder) as server:
            with open_nginx([server.port, server.port]) as nginx:
                async with client_of(nginx) as client:
                    for path in ("/metrics", "/metrics/", "/metrics%2f", "//%6detrics"):
                        answer = await client.get(f"{nginx.url}{path}")
                        assert answer.status_code == 404, path
                    assert (await client.get("/v1/models")).status_code == 200
                    answer = await client.get(f"{nginx.plain_url}/v1/models")
                    assert answer.status_code == 308
                    assert answer.headers["location"] == "https://127.0.0.1/v1/models"


async def test_a_session_stays_with_one_replica(
    tokenizer_folder: Path, open_nginx: Any
) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    with trio.fail_after(SECONDS):
        async with AsyncExitStack() as stack:
            servers = [
                await stack.enter_async_context(open_fake_server(tokenizer_folder))
                for _ in range(2)
            ]
            nginx = stack.enter_context(open_nginx([each.port for each in servers]))
            client = await stack.enter_async_context(client_of(nginx))
            used = set()
            for session in map(str, range(16)):
                before = [len(each.device.plans) for each in servers]
                for _ in range(3):
                    headers = {"x-session-id": session}
                    answer = await client.post(PATH, json=body, headers=headers)
                    assert answer.status_code == 200
                changed = [
                    number
                    for number, each in enumerate(servers)
                    if len(each.device.plans) != before[number]
                ]
                assert len(changed) == 1
                used.update(changed)
            assert used == {0, 1}


async def test_without_a_replica_the_answer_is_an_error_of_the_api(
    open_nginx: Any, choose_port: Any
) -> None:
    with trio.fail_after(SECONDS):
        with open_nginx([choose_port(), choose_port()]) as nginx:
            async with client_of(nginx) as client:
                answer = await client.post(PATH, json={"prompt": "a"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert answer.json()["error"]["code"] == 503


async def test_a_body_that_is_too_long_gets_the_error_of_the_server(
    tokenizer_folder: Path, open_nginx: Any
) -> None:
    limit = parse_bytes("max_body_size", HttpConfig().max_body_size)
    with trio.fail_after(SECONDS):
        async with open_fake_server(tokenizer_folder) as server:
            with open_nginx([server.port, server.port]) as nginx:
                port = int(nginx.url.rpartition(":")[2])
                tls = await trio.open_ssl_over_tcp_stream(
                    "127.0.0.1", port, ssl_context=nginx.tls, https_compatible=True
                )
                of_nginx = await announce(tls, limit + 1)
            plain = await trio.open_tcp_stream("127.0.0.1", server.port)
            of_server = await announce(plain, limit + 1)
    assert of_nginx[0] == b"413"
    assert of_nginx == of_server


async def announce(stream: Any, num_bytes: int) -> tuple[bytes, Any]:
    """Send the head of a request with a long body, and return status and body."""
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
        f"Content-Length: {num_bytes}\r\n\r\n"
    )
    async with stream:
        await stream.send_all(head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer or not answer.endswith(b"}}"):
            data = await stream.receive_some()
            assert data, answer
            answer += data
    return answer.split()[1], json.loads(answer.partition(b"\r\n\r\n")[2])
