"""The request log has one line for each request, which says how it ended."""

from __future__ import annotations

import json
from pathlib import Path
import re
from typing import Any

import httpx2 as httpx
import pytest
import trio

from trioserve.config import HttpConfig
from trioserve.errors import EngineDied, InvalidConfig
from trioserve.http.state import ServerState
from trioserve.testing.server import (
    FakeServer,
    open_fake_pooling_server,
    open_fake_server,
)

PATH = "/v1/completions"
PROMPT = {"prompt": "a secret", "max_tokens": 6}
CHAT = {"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 6}
PHASES = ["body", "render", "queue", "prefill", "decode", "write"]
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    b"X-Request-Id: leaver\r\nContent-Length: %d\r\n\r\n"
)


class Logged:
    """A server and its request log."""

    def __init__(
        self, server: FakeServer, path: Path, client: httpx.AsyncClient
    ) -> None:
        self.server = server
        self.client = client
        self._path = path

    async def read(self, number: int = 1) -> list[Any]:
        """Wait for lines; returns all, without their keys."""
        while (text := self._path.read_text()).count("\n") < number:
            await trio.sleep(0.005)
        lines = [json.loads(line) for line in text.splitlines()]
        assert len(lines) == number
        assert text.replace("\n", "").isprintable()
        assert "secret" not in text
        return lines

    def list_lines(self) -> list[Any]:
        """Return the lines that are there."""
        return [json.loads(line) for line in self._path.read_text().splitlines()]

    async def read_one(self) -> Any:
        [line] = await self.read()
        return line

    async def post(
        self, body: object, path: str = PATH, **headers: str
    ) -> httpx.Response:
        return await self.client.post(path, json=body, headers=headers)

    async def leave(self, content: bytes, phase: str, *, length: int = 0) -> None:
        """Send a request and leave when it has come to a phase."""
        port = self.server.port
        async with await trio.open_tcp_stream("127.0.0.1", port) as leaver:
            await leaver.send_all(HEAD % (length or len(content)) + content)
            while self.server.state.lifecycle.count_phases()[phase] != 1:
                await trio.sleep(0.005)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The file with the keys of the server."""
    path = tmp_path / "keys"
    path.write_text("ann sk-a\n")
    return path


@pytest.fixture
def full_disk(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").symlink_to("/dev/full")


@pytest.fixture
def server_options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    fields = {"request_log": str(tmp_path / "requests.jsonl")}
    if "keys" in request.fixturenames:
        fields["api_key_file"] = str(request.getfixturevalue("keys"))
    return {"http": HttpConfig(**fields)}


@pytest.fixture
def logged(server: FakeServer, client: httpx.AsyncClient, tmp_path: Path) -> Logged:
    return Logged(server, tmp_path / "requests.jsonl", client)


async def test_a_generation_has_its_times_and_tokens(logged: Logged) -> None:
    headers = {"x-request-id": "mine"}
    answer = await logged.post(PROMPT | {"n": 2}, **headers)
    await logged.post(PROMPT | {"n": 2, "stream": True}, **headers)
    lines = await logged.read(2)
    num_tokens = answer.json()["usage"]["prompt_tokens"]
    for line in lines:
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT[0-9:]{8}\.\d+Z", line.pop("time"))
        seconds, phases = line.pop("seconds"), line.pop("phases")
        assert list(phases) == PHASES
        assert all(each >= 0 for each in phases.values())
        assert sum(phases.values()) == pytest.approx(seconds, abs=1e-5)
        assert line == {
            "id": "mine",
            "key": None,
            "method": "POST",
            "path": PATH,
            "status": 200,
            "ending": "answered",
            "phase": None,
            "error": None,
            "finish_reasons": {"length": 2},
            "tokens": {"prompt": num_tokens, "cached": 0, "completion": 12},
        }


@pytest.mark.server(step_seconds=0.02, max_num_seqs=1)
async def test_time_belongs_to_the_phase_in_which_it_passed(
    logged: Logged,
) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(logged.post, PROMPT)
    first, second = (line["phases"] for line in await logged.read(2))
    # Six steps each: one of the prefill and five of tokens.
    assert first["prefill"] >= 0.02 and first["decode"] >= 0.1
    assert second["queue"] >= 0.1


async def test_the_id_of_the_body_and_the_name_of_the_key(
    keys: Path, logged: Logged
) -> None:
    refused = await logged.post(PROMPT)
    body, headers = CHAT | {"request_id": "its"}, {"x-api-key": "sk-a"}
    await logged.post(body, "/v1/chat/completions", **headers)
    first, second = await logged.read(2)
    assert (first["id"], first["key"]) == (refused.headers["x-request-id"], None)
    assert (first["status"], first["error"], first["phase"]) == (
        *(401, "AuthenticationError", "body"),
    )
    assert (second["id"], second["key"]) == ("its", "ann")
    assert "sk-a" not in json.dumps([first, second])


@pytest.mark.server(step_seconds=0.02)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_is_named_with_its_phase(logged: Logged, stream: bool) -> None:
    async with trio.open_nursery() as nursery:
        body = PROMPT | {"max_tokens": 200, "stream": stream}
        nursery.start_soon(logged.post, body)
        while logged.server.state.lifecycle.count_phases()["decode"] != 1:
            await trio.sleep(0.005)
        logged.server.engine.close_requests(EngineDied())
    line = await logged.read_one()
    assert line["status"] == (200 if stream else 500)
    assert (line["ending"], line["phase"]) == ("error", "decode")
    assert line["error"] == EngineDied.code
    assert line["tokens"]["completion"] > 0 and line["finish_reasons"] == {}


@pytest.mark.server(step_seconds=0.02)
async def test_deadlines(logged: Logged) -> None:
    for stream in (True, False):
        body = PROMPT | {"max_tokens": 200, "timeout": 0.2, "stream": stream}
        await logged.post(body)
    streamed, whole = await logged.read(2)
    assert streamed["ending"] == "answered"
    assert streamed["finish_reasons"] == {"deadline": 1}
    assert (whole["status"], whole["error"]) == (504, "DeadlineExceeded")
    assert whole["phase"] == "decode"


@pytest.mark.server(step_seconds=0.02)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves(logged: Logged, stream: bool) -> None:
    content = json.dumps(PROMPT | {"max_tokens": 200, "stream": stream}).encode()
    await logged.leave(content, "decode")
    line = await logged.read_one()
    assert line["id"] == "leaver"
    assert (line["ending"], line["phase"]) == ("disconnected", "decode")
    assert line["status"] == (200 if stream else None)
    assert list(line["phases"]) == PHASES[:-1]
    assert line["error"] is None


async def test_a_client_that_leaves_amid_its_body(logged: Logged) -> None:
    await logged.leave(b"{", "body", length=100)
    line = await logged.read_one()
    assert (line["ending"], line["phase"]) == ("disconnected", "body")
    assert list(line["phases"]) == ["body"]
    assert line["tokens"] is None


async def test_the_end_of_the_server_cuts_requests(
    tokenizer_folder: Path, server_options: dict[str, Any], tmp_path: Path
) -> None:
    content = json.dumps(PROMPT | {"max_tokens": 200}).encode()
    async with open_fake_server(
        tokenizer_folder, step_seconds=0.02, **server_options
    ) as server:
        client = await trio.open_tcp_stream("127.0.0.1", server.port)
        await client.send_all(HEAD % len(content) + content)
        while server.state.lifecycle.count_phases()["decode"] != 1:
            await trio.sleep(0.005)
    line = json.loads((tmp_path / "requests.jsonl").read_text())
    assert (line["ending"], line["phase"]) == ("cut", "decode")
    await client.aclose()


@pytest.mark.server(step_seconds=0.02)
async def test_a_response_in_the_background_has_a_line_of_its_own(
    logged: Logged,
) -> None:
    body = {"input": "a secret", "background": True, "max_output_tokens": 6}
    headers = {"x-request-id": "mine"}
    await logged.post(body, "/v1/responses", **headers)
    begun, ended = await logged.read(2)
    long = body | {"max_output_tokens": 200}
    await logged.post(long, "/v1/responses", **headers)
    while logged.server.state.background.num_running:
        await logged.client.delete("/v1/requests/mine")
        await trio.sleep(0.01)
    cancelled = [each for each in logged.list_lines() if "resp" in each["path"]][-1]
    assert (begun["status"], begun["tokens"]) == (200, None)
    assert list(begun["phases"]) == ["body", "render", "queue", "write"]
    assert (ended["id"], ended["path"]) == ("mine", "/v1/responses")
    assert (ended["status"], ended["ending"], ended["phase"]) == (
        *(None, "answered", None),
    )
    assert ended["tokens"]["completion"] == 6 and ended["tokens"]["prompt"] > 0
    assert ended["finish_reasons"] == {"length": 1}
    assert list(ended["phases"]) == PHASES
    assert sum(ended["phases"].values()) == pytest.approx(ended["seconds"], abs=1e-5)
    assert ended["phases"]["decode"] >= 0.1
    assert (cancelled["ending"], cancelled["error"]) == ("error", "RequestCancelled")
    assert cancelled["phase"] in ("queue", "prefill", "decode")


async def test_probes_are_left_out_and_unknown_paths_are_not(
    logged: Logged,
) -> None:
    for path in ("/health", "/health/", "/metrics", "/version/"):
        assert (await logged.client.get(path)).status_code == 200
    await logged.client.get("/v1/models")
    await logged.client.get(f"/{'x' * 2000}")
    await logged.client.get("/a%E2%80%A8%E2%80%AEb%0A%7F")
    known, unknown, unseen = await logged.read(3)
    assert (known["path"], known["status"]) == ("/v1/models", 200)
    assert known["tokens"] is None and list(known["phases"]) == ["body", "write"]
    assert unknown["path"] == f"/{'x' * 511}"
    assert (unknown["status"], unknown["error"]) == (404, "NotFoundError")
    assert unseen["path"] == "/a\u2028\u202eb\n\x7f"


@pytest.mark.server(open=open_fake_pooling_server)
async def test_pooled_texts_have_tokens(logged: Logged) -> None:
    answer = await logged.post({"input": ["a", "b a"]}, "/v1/embeddings")
    line = await logged.read_one()
    num_tokens = answer.json()["usage"]["prompt_tokens"]
    assert line["tokens"] == {"prompt": num_tokens, "cached": 0, "completion": 0}
    assert list(line["phases"]) == ["body", "render", "prefill", "write"]


async def test_a_disk_that_takes_nothing_is_a_metric(
    full_disk: None, logged: Logged
) -> None:
    assert (await logged.post(PROMPT)).status_code == 200
    text = ""
    while "trioserve_request_log_lines_dropped_total 1.0" not in text:
        text = (await logged.client.get("/metrics")).text


def test_a_log_that_cannot_be_opened_is_reported_at_the_start(tmp_path: Path) -> None:
    config = HttpConfig(request_log=str(tmp_path / "none" / "log"))
    with pytest.raises(InvalidConfig, match="request-log.*No such file"):
        ServerState(config=config)
