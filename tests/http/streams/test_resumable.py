"""A client that has lost its connection goes on with its stream where it was."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
import trio

from trioserve.config import STREAM_LOG_BYTES, HttpConfig
from trioserve.testing.server import FakeServer, open_fake_server

# The client leaves generators of its own to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES, "max_tokens": 40},
    "/v1/completions": {"prompt": "hi", "max_tokens": 40},
    "/v1/responses": {"input": "hi", "max_output_tokens": 40},
    "/v1/messages": {"model": "fake", "messages": MESSAGES, "max_tokens": 40},
}


def resuming(num_streams: int, **fields: Any) -> HttpConfig:
    """Make the options of a server that keeps so many streams."""
    memory = f"{num_streams * STREAM_LOG_BYTES}"
    return HttpConfig(resume_seconds=20, max_resume_memory=memory, **fields)


class Client:
    """Reads streams as far as it is told, and then leaves."""

    def __init__(self, server: FakeServer, client: httpx.AsyncClient) -> None:
        self.server = server
        self.client = client

    async def read(
        self,
        path: str = CHAT,
        *,
        last: str = "",
        most: int | None = None,
        key: str = "",
        **fields: Any,
    ) -> list[dict[str, str]]:
        """Read events, from the one behind `last` on; leave behind the `most`th."""
        headers = {"Last-Event-ID": last} if last else {}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        body = {} if last else {**BODIES[path], "stream": True, **fields}
        events: list[dict[str, str]] = []
        async with self.client.stream(
            "POST", path, json=body, headers=headers
        ) as answer:
            if answer.status_code != 200:
                raise httpx.HTTPStatusError(
                    (await answer.aread()).decode(),
                    request=answer.request,
                    response=answer,
                )
            event: dict[str, str] = {}
            async for line in answer.aiter_lines():
                if line:
                    name, _, value = line.partition(": ")
                    event[name] = value
                    continue
                events.append(event)
                event = {}
                if len(events) == most:
                    break
        return events

    async def wait_until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            await trio.sleep(0.005)

    async def wait_detached(self) -> None:
        await self.wait_until(lambda: self.server.state.lifecycle.num_active == 0)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The request log of the server."""
    return tmp_path / "log"


@pytest.fixture
def server_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    if "log" not in request.fixturenames:
        return {"http": HttpConfig(resume_seconds=20)}
    log = str(request.getfixturevalue("log"))
    return {"http": HttpConfig(resume_seconds=20, request_log=log)}


@pytest.fixture
def reader(server: FakeServer, client: httpx.AsyncClient) -> Client:
    return Client(server, client)


def read_text(events: list[dict[str, str]]) -> str:
    """Return the text of a stream; a fast device joins the texts of several tokens."""
    texts = []
    for event in events:
        if event["data"] == "[DONE]":
            continue
        data = json.loads(event["data"])
        for choice in data.get("choices", ()):
            texts.append(choice.get("text") or choice.get("delta", {}).get("content"))
        if data.get("type") == "response.output_text.delta":
            texts.append(data["delta"])
        if data.get("type") == "content_block_delta":
            texts.append(data["delta"]["text"])
    return "".join(filter(None, texts))


async def test_two_connections_give_one_stream(reader: Client) -> None:
    for num_before, path in enumerate(BODIES):
        whole = await reader.read(path)
        first = await reader.read(path, most=len(whole) // 2)
        await reader.wait_detached()
        rest = await reader.read(path, last=first[-1]["id"])
        assert read_text(first + rest) == read_text(whole) != ""
        ids = [event["id"] for event in first + rest]
        stream = ids[0].partition("-")[0]
        assert ids == [f"{stream}-{number}" for number in range(len(ids))]
        assert reader.server.state.resumable.num_resumed == num_before + 1


@pytest.mark.server(step_seconds=0.01)
async def test_a_stream_goes_on_without_a_connection(reader: Client) -> None:
    first = await reader.read(most=2)
    await reader.wait_detached()
    engine = reader.server.engine
    assert engine.statistics().num_streams == 1
    # The list of requests shows it, until it ends.
    cards = (await reader.client.get("/v1/requests")).json()["data"]
    assert [card["phase"] for card in cards] == ["decode"]
    await reader.wait_until(lambda: engine.statistics().num_streams == 0)
    assert (await reader.client.get("/v1/requests")).json()["data"] == []
    # All of it is there, also twice.
    for _ in range(2):
        rest = await reader.read(last=first[-1]["id"])
        assert rest[-1]["data"] == "[DONE]"
        numbers = [int(event["id"].partition("-")[2]) for event in first + rest]
        assert numbers == [*range(len(numbers))]


@pytest.mark.server(http=HttpConfig(resume_seconds=0.05), step_seconds=0.02)
async def test_a_stream_ends_when_nobody_comes_back(reader: Client) -> None:
    first = await reader.read(most=2, max_tokens=200)
    state = reader.server.state
    await reader.wait_until(lambda: state.resumable.num_streams == 0)
    # Long before its 200 tokens.
    await reader.wait_until(lambda: reader.server.engine.statistics().num_streams == 0)
    assert state.resumable.tasks.num_running == 0
    with pytest.raises(httpx.HTTPStatusError, match="--resume-seconds") as caught:
        await reader.read(last=first[-1]["id"])
    assert caught.value.response.status_code == 404


@pytest.mark.server(step_seconds=0.01)
async def test_the_newest_connection_has_the_stream(reader: Client) -> None:
    counts: list[int] = []

    async def read_first(*, task_status: trio.TaskStatus[str]) -> None:
        body = {**BODIES[CHAT], "stream": True}
        num_lines = 0
        async with reader.client.stream("POST", CHAT, json=body) as answer:
            # It is cut off: an end in order would look like a whole answer.
            with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
                async for line in answer.aiter_lines():
                    num_lines += 1
                    if num_lines == 1:
                        task_status.started(line.removeprefix("id: "))
        counts.append(num_lines)

    async with trio.open_nursery() as nursery:
        event_id = await nursery.start(read_first)
        rest = await reader.read(last=event_id)
    assert rest[-1]["data"] == "[DONE]"
    # The first connection ended early.
    assert counts[0] < 3 * len(rest)


async def test_an_unknown_event_is_404(reader: Client) -> None:
    for last in ("7", "f" * 32 + "-0", "f" * 32, "-1", "a" * 32 + f"-{10**19 - 1}"):
        with pytest.raises(httpx.HTTPStatusError, match="Last-Event-ID") as caught:
            await reader.read(last=last)
        assert caught.value.response.status_code == 404
    assert not reader.server.device.plans


@pytest.mark.server(http=HttpConfig(resume_seconds=20, api_key=("mine", "yours")))
async def test_no_other_request_can_take_a_stream(reader: Client) -> None:
    first = await reader.read(most=2, key="mine")
    last = first[-1]["id"]
    stream = last.partition("-")[0]
    for path, number, key in (
        # An event that will come later.
        *((CHAT, 9000, "mine"), (CHAT, 1, "yours"), ("/v1/completions", 1, "mine")),
    ):
        with pytest.raises(httpx.HTTPStatusError) as caught:
            await reader.read(path, last=f"{stream}-{number}", key=key)
        assert caught.value.response.status_code == 404
    assert (await reader.read(last=last, key="mine"))[-1]


@pytest.mark.server(step_seconds=0.02)
async def test_a_stream_without_a_connection_can_be_cancelled(
    reader: Client,
) -> None:
    first = await reader.read(most=2, max_tokens=200)
    await reader.wait_detached()
    [card] = (await reader.client.get("/v1/requests")).json()["data"]
    await reader.client.delete(f"/v1/requests/{card['id']}")
    rest = await reader.read(last=first[-1]["id"])
    assert "error" in rest[-1]["data"] or "error" in rest[-2]["data"]
    assert reader.server.engine.statistics().num_streams == 0


@pytest.mark.server(http=HttpConfig(), step_seconds=0.01)
async def test_without_the_option_events_have_no_ids_and_streams_end(
    reader: Client,
) -> None:
    events = await reader.read(most=2, max_tokens=200)
    assert [list(event) for event in events] == [["data"], ["data"]]
    engine = reader.server.engine
    await reader.wait_until(lambda: engine.statistics().num_streams == 0)


@pytest.mark.server(http=resuming(2))
async def test_the_number_of_streams_is_bounded(reader: Client) -> None:
    firsts = [await reader.read(most=2) for _ in range(3)]
    assert reader.server.state.resumable.num_streams == 2
    with pytest.raises(httpx.HTTPStatusError):
        await reader.read(last=firsts[0][-1]["id"])
    for first in firsts[1:]:
        assert await reader.read(last=first[-1]["id"])


@pytest.mark.server(http=resuming(1), step_seconds=0.01)
async def test_a_stream_that_finds_no_room_has_no_ids(reader: Client) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.read)
        await reader.wait_until(lambda: reader.server.state.resumable.num_streams)
        events = await reader.read()
        assert all("id" not in event for event in events)
        assert events[-1]["data"] == "[DONE]"


@pytest.mark.server(http=resuming(3, api_key=("ann", "bob")))
async def test_a_key_loses_its_own_streams_first(reader: Client) -> None:
    of_bob = await reader.read(most=2, key="bob")
    of_ann = [await reader.read(most=2, key="ann") for _ in range(5)]
    assert reader.server.state.resumable.num_streams == 3
    with pytest.raises(httpx.HTTPStatusError):
        await reader.read(last=of_ann[2][-1]["id"], key="ann")
    await reader.read(last=of_ann[3][-1]["id"], key="ann")
    await reader.read(last=of_bob[-1]["id"], key="bob")


@pytest.mark.server(http=resuming(1, api_key=("ann", "bob")), step_seconds=0.01)
async def test_a_key_has_room_though_connections_of_another_fill_it(
    reader: Client,
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: reader.read(key="ann"))
        await reader.wait_until(lambda: reader.server.state.resumable.num_streams)
        assert "id" not in (await reader.read(most=1, key="ann"))[0]
        assert "id" in (await reader.read(most=1, key="bob"))[0]
        nursery.cancel_scope.cancel()


async def test_a_failed_engine_ends_a_stream_with_an_error(
    tokenizer_folder: Path,
) -> None:
    with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
        async with (
            open_fake_server(
                tokenizer_folder, http=resuming(9), fail_at_step=6
            ) as server,
            httpx.AsyncClient(base_url=server.url, timeout=20) as client,
        ):
            with trio.CancelScope(shield=True):
                events = await Client(server, client).read()
    assert json.loads(events[-2]["data"])["error"]["code"] == 500
    assert events[-1]["data"] == "[DONE]"
    assert all("id" in event for event in events)


@pytest.mark.server(
    http=HttpConfig(resume_seconds=20, sse_keepalive=0.02), step_seconds=0.1
)
async def test_openais_client_reads_events_with_ids_and_comments(
    reader: Client,
) -> None:
    async with (
        openai.AsyncOpenAI(
            base_url=f"{reader.server.url}/v1", api_key="none"
        ) as official,
        await official.chat.completions.create(
            **BODIES[CHAT] | {"max_tokens": 5}, model="fake", stream=True
        ) as chunks,
    ):
        ends = [chunk.choices[0].finish_reason async for chunk in chunks]
    assert len(ends) > 3
    assert ends[-1] == "length"


@pytest.mark.server(http=resuming(1))
async def test_a_stream_that_begins_is_not_driven_out_by_the_next_ones(
    reader: Client,
) -> None:
    ends: list[str] = []

    async def read() -> None:
        ends.append((await reader.read(max_tokens=3))[-1]["data"])

    for _ in range(4):
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(read)
    assert ends == ["[DONE]"] * 24
    assert reader.server.engine.statistics().num_streams == 0


async def test_other_requests_may_have_the_header(client: httpx.AsyncClient) -> None:
    """It means something only where the server has given ids."""
    header = {"Last-Event-ID": "7"}
    stored = await client.post("/v1/responses", json=BODIES["/v1/responses"])
    path = f"/v1/responses/{stored.json()['id']}"
    assert (await client.get(path, headers=header)).status_code == 200


@pytest.mark.server(http=HttpConfig())
async def test_a_server_without_the_option_ignores_the_header(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.post(CHAT, json=BODIES[CHAT], headers={"Last-Event-ID": "7"})
    assert answer.status_code == 200


@pytest.mark.server(step_seconds=0.02)
async def test_the_request_log_has_the_tokens_and_the_error_of_a_resumed_stream(
    reader: Client, log: Path
) -> None:
    first = await reader.read(most=2, max_tokens=200)
    await reader.wait_detached()
    [card] = (await reader.client.get("/v1/requests")).json()["data"]
    await reader.client.delete(f"/v1/requests/{card['id']}")
    await reader.read(last=first[-1]["id"])
    cancelled = reader.server.state.counts.cancelled
    assert sum(cancelled.values()) == 0
    while log.read_text().count(f'"path":"{CHAT}"') < 2:
        await trio.sleep(0.005)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    begun, *_, resumed = [line for line in lines if line["path"] == CHAT]
    assert begun["ending"] == "disconnected"
    assert resumed["ending"] == "error"
    assert resumed["error"] == "RequestCancelled"
    assert resumed["tokens"]["completion"] >= begun["tokens"]["completion"] > 0
    # The stream is older than the request that took it up.
    assert sum(resumed["phases"].values()) == pytest.approx(
        resumed["seconds"], abs=1e-5
    )
    assert min(resumed["phases"].values()) >= 0
