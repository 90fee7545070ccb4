"""The time from a cancellation to the free blocks is measured, however it came."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractAsyncContextManager
import logging
import re
import threading

import httpx2 as httpx
import pytest
import raw_http
from raw_http import write_post
import trio

from trioserve.testing.server import FakeServer

BODY = {"prompt": "a", "max_tokens": 200, "n": 2}


def send(
    server: FakeServer, **fields: object
) -> AbstractAsyncContextManager[trio.SocketStream]:
    packet = write_post("/v1/completions", BODY | fields, X_Request_Id="one")
    return raw_http.send(server.port, packet)


def count(server: FakeServer) -> dict[str, int]:
    """Return the number of measured times by phase.

    The phase of a stream is "write" at the moments when a piece of it is written, so what
    ends in it counts as "decode".
    """
    times = server.state.counts.cancel_to_free
    counts: Counter[str] = Counter()
    for phase, each in times.items():
        counts["decode" if phase == "write" else phase] += sum(each.statistics().counts)
    return dict(+counts)


async def wait_for(server: FakeServer, counts: dict[str, int]) -> None:
    while server.state.lifecycle.num_active or count(server) != counts:
        await trio.sleep(0.001)


async def wait_phase(server: FakeServer, phase: str) -> None:
    while not server.state.lifecycle.count_phases()[phase]:  # type: ignore[index]
        await trio.sleep(0.001)


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(
            name, marks=pytest.mark.server(step_seconds=0.01, is_remote=is_remote)
        )
        for name, is_remote in [("here", False), ("in_a_process", True)]
    ],
)
async def test_each_way_to_cancel_is_measured(
    server: FakeServer,
    client: httpx.AsyncClient,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    caplog.set_level(logging.DEBUG, "trioserve.http.record.request_counts")
    # One that ends by itself is not measured.
    await client.post("/v1/completions", json=BODY | {"max_tokens": 1})
    async with send(server, stream=True):
        await wait_phase(server, "decode")
    await wait_for(server, {"decode": 1})
    for stream in (True, False):
        async with send(server, stream=stream):
            await wait_phase(server, "decode")
            await client.delete("/v1/requests/one")
            # Its client has not left yet.
            await wait_for(server, {"decode": 2 + (not stream)})
    for stream in (True, False):
        # Long enough for the first token.
        body = BODY | {"timeout": 0.3, "stream": stream}
        await client.post("/v1/completions", json=body)
        await wait_for(server, {"decode": 4 + (not stream)})
    lines = [each.getMessage() for each in caplog.records]
    assert len(lines) == 5
    assert re.fullmatch(
        r"request one: free \d+\.\d{3} ms after it was cancelled in (decode|write)",
        lines[0],
    )


async def test_a_request_that_is_rendered_is_free_when_its_worker_is(
    server: FakeServer,
) -> None:
    assert server.state.engine is not None
    workers = server.state.engine.renderer.workers
    workers.resize(1)
    gate = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(workers.run, gate.wait)
        async with send(server):
            await wait_phase(server, "render")
        await wait_for(server, {"render": 1})
        gate.set()


# Long enough for this task to see the blocks before the step in flight ends.
@pytest.mark.server(step_seconds=0.2, is_remote=True)
async def test_the_time_ends_with_the_blocks_of_the_other_process(
    server: FakeServer,
) -> None:
    used: list[int] = []
    async with send(server, stream=True):
        await wait_phase(server, "decode")
        server.engine.after_aborts(lambda: used.append(1))
        # Nothing was aborted before, so it is called at once.
        assert used == [1]
    while server.engine.statistics().num_streams:
        await trio.lowlevel.checkpoint()
    assert server.engine.statistics().scheduler.num_used_blocks
    assert count(server) == {}
    await wait_for(server, {"decode": 1})
    assert not server.engine.statistics().scheduler.num_used_blocks
