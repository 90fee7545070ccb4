"""Responses in the background: polling, following, cancelling, bounds, and the drain."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

import openai
from openai.types.responses import Response
import pytest
import trio

from trioserve.api.responses import background as background_responses
from trioserve.api.responses.writer import ResponseWriter
from trioserve.config import HttpConfig
from trioserve.errors import EngineDied
from trioserve.testing.server import FakeServer, open_fake_server
from trioserve.testing.tokenizer import IM_END

ANSWER = "The dog sleeps on."
# Longer than any test.
FOREVER = 3600.0


pytestmark = pytest.mark.server(answer=ANSWER, eos_token=IM_END)


@pytest.fixture
def client(openai_client: openai.AsyncOpenAI) -> openai.AsyncOpenAI:
    return openai_client


async def create(client: openai.AsyncOpenAI, **fields: Any) -> Any:
    fields = {"model": "fake", "input": "Hello", "background": True} | fields
    return await client.responses.create(**fields)


async def poll(client: openai.AsyncOpenAI, response_id: str) -> Response:
    while True:
        response = await client.responses.retrieve(response_id)
        if response.status not in ("queued", "in_progress"):
            return response
        await trio.sleep(0.01)


async def wait_free(server: FakeServer) -> None:
    """Wait until nothing of a response is left in the engine."""
    while server.state.background.num_running:
        await trio.lowlevel.checkpoint()
    assert server.engine.statistics().num_streams == 0


async def test_a_response_is_polled_until_it_is_complete(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    response = await create(client)
    assert response.status == "queued"
    assert response.background is True
    ended = await poll(client, response.id)
    assert (ended.status, ended.output_text) == ("completed", ANSWER)
    assert ended.id == response.id
    await wait_free(server)
    # It can be continued, and a later cancellation leaves it as it is.
    assert await client.responses.cancel(response.id) == ended
    again = await client.responses.create(
        model="fake", input="And?", previous_response_id=response.id
    )
    assert again.output_text == ANSWER


@pytest.mark.server(step_seconds=0.01)
async def test_a_stream_that_breaks_off_is_followed_from_the_next_event(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    stream = await create(client, stream=True)
    events: list[Any] = []
    async with aclosing(aiter(stream)) as iterator:
        async for event in iterator:
            events.append(event)
            if event.type == "response.output_text.delta":
                break
    assert server.state.background.num_running == 1
    response_id = events[0].response.id
    last = events[-1].sequence_number
    rest = await client.responses.retrieve(
        response_id, stream=True, starting_after=last
    )
    events += [event async for event in rest]
    assert [each.sequence_number for each in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    pieces = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(pieces) == ANSWER
    # All events are there until the response goes.
    again = await client.responses.retrieve(response_id, stream=True)
    assert [event async for event in again] == events


@pytest.mark.server(step_seconds=0.05, eos_token=None)
async def test_a_running_response_is_cancelled(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    stream = await create(client, stream=True, max_output_tokens=200)
    events: list[Any] = []
    cancelled: Any = None
    async for event in stream:
        events.append(event)
        response_id = events[0].response.id
        if event.type == "response.output_text.delta" and cancelled is None:
            with pytest.raises(openai.BadRequestError, match="still running"):
                await create(client, previous_response_id=response_id)
            cancelled = await client.responses.cancel(response_id)
    assert cancelled.status == "cancelled"
    assert cancelled.output_text
    assert events[-1].type == "response.incomplete"
    assert events[-1].response == cancelled
    await wait_free(server)
    assert (await client.responses.retrieve(response_id)) == cancelled
    with pytest.raises(openai.BadRequestError, match="has no answer"):
        await create(client, previous_response_id=response_id)


@pytest.mark.server(step_seconds=FOREVER)
async def test_a_running_response_that_is_deleted_ends(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    response = await create(client)
    # The fake device cannot be interrupted in its step, which lasts for ever.
    await client.responses.delete(response.id)
    while server.state.background.num_running:
        await trio.lowlevel.checkpoint()
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)
    assert server.state.responses.statistics().num_bytes == 0


@pytest.mark.server(http=HttpConfig(max_background_responses=2), step_seconds=FOREVER)
async def test_too_many_responses_are_refused(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    for _ in range(2):
        await create(client)
    with pytest.raises(openai.RateLimitError, match="2 responses") as caught:
        await create(client)
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
    assert server.state.background.num_refused == 1
    # Those with a client that waits are not counted.
    with trio.move_on_after(0.1):
        await create(client, background=False)
        raise AssertionError("the device never ends")


async def test_wrong_requests_are_refused_before_anything_runs(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    for fields in ({"input": "a " * 500}, {"max_output_tokens": 1000}):
        with pytest.raises(openai.BadRequestError):
            await create(client, **fields)
    assert server.state.background.num_running == 0
    assert server.state.responses.statistics().num_responses == 0


@pytest.mark.server(step_seconds=FOREVER)
async def test_an_engine_that_dies_fails_the_response(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    response = await create(client)
    server.engine.close_requests(EngineDied())
    failed = await poll(client, response.id)
    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error.code == "server_error"


@pytest.mark.parametrize(
    ("place", "streams"),
    [("push", True), ("finish", False), ("encode", True), ("encode", False)],
)
async def test_a_defect_fails_the_response_and_nothing_else(
    server: FakeServer,
    client: openai.AsyncOpenAI,
    place: str,
    streams: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def break_down(*args: object) -> Any:
        raise RuntimeError("a defect")

    if place == "encode":
        monkeypatch.setattr(background_responses, "run_writing", break_down)
    else:
        monkeypatch.setattr(ResponseWriter, place, break_down)
    if streams:
        stream = await create(client, stream=True)
        events = [event async for event in stream]
        numbers = [event.sequence_number for event in events]
        assert numbers == list(range(len(events)))
        assert events[-1].type == "response.failed"
        failed = await poll(client, events[-1].response.id)
        assert failed == events[-1].response
    else:
        failed = await poll(client, (await create(client)).id)
    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error.code == "server_error"
    assert failed.output == []
    await wait_free(server)
    items = await client.responses.input_items.list(failed.id)
    assert len(items.data) == 1
    # The server goes on.
    monkeypatch.undo()
    ended = await poll(client, (await create(client)).id)
    assert ended.status == "completed"
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.getMessage() == f"the response {failed.id} failed"


# All events of a stream are kept, and the last ones repeat the whole text.
@pytest.mark.parametrize(
    ("streams", "num_tokens"),
    [
        pytest.param(
            *(False, 200),
            marks=pytest.mark.server(http=HttpConfig(max_responses_memory="4000")),
        ),
        pytest.param(
            *(True, 16),
            marks=pytest.mark.server(http=HttpConfig(max_responses_memory="9000")),
        ),
    ],
)
@pytest.mark.server(eos_token=None)
async def test_a_response_that_grows_too_large_to_be_stored_fails(
    client: openai.AsyncOpenAI, streams: bool, num_tokens: int
) -> None:
    response = await create(client, max_output_tokens=num_tokens, stream=streams)
    if streams:
        events = [event async for event in response]
        assert [e.type for e in events[-2:]] == [
            *("response.output_text.delta", "response.failed")
        ]
        response = events[-1].response
    failed = await poll(client, response.id)
    assert failed.status == "failed"
    assert failed.error is not None
    assert "--max-responses-memory" in failed.error.message
    assert failed.output == []


@pytest.mark.server(http=HttpConfig(drain_timeout=1e9), step_seconds=FOREVER)
async def test_a_drain_ends_responses_at_once(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    await create(client)
    stream = await create(client, stream=True)
    server.state.lifecycle.begin_drain()
    events = [event async for event in stream]
    assert events[-1].type == "response.failed"
    assert "shutting down" in events[-1].response.error.message
    await server.state.finish_drain()
    assert server.state.background.num_running == 0


@pytest.mark.server(http=HttpConfig(response_max_age=0.2))
async def test_old_responses_are_freed_without_any_request(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    await client.responses.create(model="fake", input="Hello")
    while server.state.responses.statistics().num_responses:
        await trio.sleep(0.01)
    assert server.state.responses.dropped["age"] == 1


async def test_a_response_belongs_to_its_key(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("ann mine\nbob yours\nroot all admin\n")
    async with (
        open_fake_server(
            tokenizer_folder,
            http=HttpConfig(api_key_file=str(keys)),
            answer=ANSWER,
            eos_token=IM_END,
        ) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
    ):
        mine, yours, admin = (
            client.with_options(api_key=key) for key in ("mine", "yours", "all")
        )
        for background in (False, True):
            response = await create(mine, background=background)
            if background:
                await poll(mine, response.id)
            for call in (
                yours.responses.retrieve,
                yours.responses.delete,
                yours.responses.cancel,
                yours.responses.input_items.list,
            ):
                with pytest.raises(openai.NotFoundError):
                    await call(response.id)
            with pytest.raises(openai.BadRequestError, match="not found"):
                await create(yours, previous_response_id=response.id)
            for asker in (mine, admin):
                assert (await asker.responses.retrieve(response.id)).id == response.id
                again = await create(
                    asker, previous_response_id=response.id, background=False
                )
                assert again.output_text == ANSWER
