"""The leak audit finds what outlives its request, and nothing else."""

from __future__ import annotations

from contextlib import AsyncExitStack
import logging
import os
import socket
import threading
from typing import Any

import httpx2 as httpx
import pytest
import trio
import trio.testing

from trioserve.config import HttpConfig
from trioserve.engine.generation.token_stream import TokenStream
from trioserve.http.audit import audit
from trioserve.http.audit.audit import find_leaked_tasks
from trioserve.http.audit.process import ProcessAudit
from trioserve.http.connection import list_connections
from trioserve.http.state import ServerState
from trioserve.observe import Leak, Owner
from trioserve.observe.process_holdings import ProcessHoldings
from trioserve.processes import pack
from trioserve.render.workers.threads import TookTooLong, hold_token
from trioserve.server.metrics import render_metrics
from trioserve.testing.server import (
    FakePoolingServer,
    FakeServer,
    open_fake_pooling_server,
)
from trioserve.types.tensors import TensorBytes

PATH = "/v1/completions"
BODY = {"prompt": "The quick brown fox jumps over the lazy dog. " * 3, "max_tokens": 20}
TENSOR = TensorBytes(data=bytes(100_000), dtype="float32", shape=(25_000,))


@pytest.fixture(params=[False, True], ids=["here", "in_a_process"])
def is_remote(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def server_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    if "is_remote" not in request.fixturenames:
        return {}
    return {"is_remote": request.getfixturevalue("is_remote")}


async def wait_idle(server: FakeServer | FakePoolingServer) -> None:
    while not server.state.is_idle:
        await trio.sleep(0.001)


async def wait_running(server: FakeServer) -> None:
    while not server.engine.statistics().scheduler.num_used_blocks:
        await trio.sleep(0.001)


async def find(server: FakeServer | FakePoolingServer) -> list[Leak]:
    """Look twice, because the first look only raises a suspicion."""
    assert await server.state.audit.look() == []
    return await server.state.audit.look()


def name(leaks: list[Leak]) -> list[tuple[str, str | None]]:
    return sorted((each.kind, each.request_id) for each in leaks)


@pytest.mark.server(step_seconds=0.05)
async def test_work_that_the_engine_does_not_know_is_found(
    server: FakeServer,
    client: httpx.AsyncClient,
    is_remote: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    body = BODY | {"max_tokens": 100, "stream": True}
    # Its abort never arrives.
    monkeypatch.setattr(server.engine._core, "abort", lambda ids: None)
    async with client.stream("POST", PATH, json=body, headers={"X-Request-Id": "lost"}):
        await wait_running(server)
    await wait_idle(server)
    leaks = await find(server)
    assert name(leaks) == [("blocks", "lost"), ("slots", "lost")]
    # Each leak is told once.
    assert await server.state.audit.look() == []
    [first, second] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert first.getMessage() == "leak of slots: work 0 outlives request lost"
    assert "KV blocks of work 0 outlives request lost" in second.getMessage()
    metrics = render_metrics(server.state).decode()
    assert 'trioserve_leaks_total{kind="blocks"} 1.0' in metrics
    assert 'trioserve_leaks_total{kind="tasks"} 0.0' in metrics
    assert "trioserve_leak_audits_total 3.0" in metrics


async def test_blocks_and_slots_that_nobody_holds_are_found(
    server: FakeServer,
    client: httpx.AsyncClient,
) -> None:
    scheduler: Any = server.engine._core._scheduler  # type: ignore[attr-defined]
    scheduler._blocks._pool.allocate(3)
    scheduler._running._free_slots.pop()
    await client.post(PATH, json=BODY, headers={"X-Request-Id": "one"})
    leaks = await find(server)
    assert name(leaks) == [("blocks", None), ("slots", None)]
    assert leaks[0].text == "3 KV blocks that nobody holds"
    # The leak grows at each look, and only what was there twice counts.
    counts = []
    for _ in range(4):
        scheduler._blocks._pool.allocate(2)
        await server.state.audit.look()
        counts.append(server.state.audit.num_leaks["blocks",])
    assert counts == [3, 5, 7, 9]
    [last] = await server.state.audit.look()
    assert last.text == "11 KV blocks that nobody holds"
    assert await server.state.audit.look() == []
    assert server.state.audit.num_leaks["blocks",] == 11
    assert server.state.audit.num_leaks["slots",] == 1


async def test_streams_that_the_core_does_not_have_are_found(
    server: FakeServer, client: httpx.AsyncClient, is_remote: bool
) -> None:
    streams: Any = server.engine._streams
    with Owner("forgotten").hold():
        streams[1000] = TokenStream(
            1, lambda index, is_complete: None, lambda task: None
        )
    leaks = await find(server)
    assert name(leaks) == [("slots", "forgotten")]
    assert leaks[0].text == "work 1000, which the core does not have"
    del streams[1000]
    assert await server.state.audit.look() == []


async def test_the_audit_of_many_tasks_lets_others_run() -> None:
    num_turns = 0

    async def count_turns() -> None:
        nonlocal num_turns
        while True:
            await trio.lowlevel.checkpoint()
            num_turns += 1

    async with trio.open_nursery() as nursery:
        with Owner("ended").hold():
            for _ in range(2500):
                nursery.start_soon(trio.sleep_forever)
        nursery.start_soon(count_turns)
        leaks = await find_leaked_tasks()
        nursery.cancel_scope.cancel()
    assert len(leaks) == 2500
    assert num_turns >= 3


@pytest.mark.parametrize("every", [1, 2, 10])
def test_a_slow_leak_of_descriptors_is_found(every: int) -> None:
    process = ProcessAudit("the process")
    found = [
        len([*process.find(hold_pipes(10 + number // every))]) for number in range(100)
    ]
    # The fourth rise has lasted for five looks.
    first = 4 * every + 4
    assert found == [0] * first + [1] * (100 - first)


def test_numbers_of_descriptors_that_fall_again_are_no_leak() -> None:
    process = ProcessAudit("the process")
    # Two are kept, and others come and go.
    for number in range(1000):
        extra = min(number // 100, 2) + (number * 7) % 5
        assert not [*process.find(hold_pipes(10 + extra))]


def hold_pipes(number: int) -> ProcessHoldings:
    return ProcessHoldings(
        memory=(), descriptors=tuple((each, f"pipe:[{each}]") for each in range(number))
    )


async def test_things_of_each_kind_are_found_with_their_request(
    server: FakeServer,
    client: httpx.AsyncClient,
) -> None:
    gate = threading.Event()
    assert server.state.engine is not None
    workers = server.state.engine.renderer.workers
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        stack.callback(gate.set)
        with Owner("of-tasks").hold():
            nursery.start_soon(trio.sleep_forever)
        with Owner("of-tokens").hold():
            await stack.enter_async_context(hold_token(workers.limiter))
        with Owner("of-threads").hold(), pytest.raises(TookTooLong):
            await workers.run_limited(gate.wait, 0.01)
        with Owner("of-memory").hold():
            stack.callback(pack(TENSOR).close)
        leaks = await find(server)
    kinds = ("memory", "tasks", "threads", "tokens")
    assert name(leaks) == [(kind, f"of-{kind}") for kind in kinds]


async def test_a_socket_of_no_connection_is_found(
    server: FakeServer, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    await server.state.audit.look()
    await client.post(PATH, json=BODY, headers={"X-Request-Id": "one"})
    [connection] = list_connections()
    leaked = os.dup(connection)
    try:
        assert name(await find(server)) == [("descriptors", None)]
        assert "of a client outlives request one" in caplog.text
    finally:
        os.close(leaked)


async def test_a_thread_that_was_abandoned_is_found(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    gate = threading.Event()
    with trio.move_on_after(0.01):
        await trio.to_thread.run_sync(gate.wait, abandon_on_cancel=True)
    leaks = await find(server)
    gate.set()
    assert name(leaks) == [("threads", None)]
    assert await server.state.audit.look() == []


async def test_a_rising_number_of_descriptors_is_found(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    opened: list[socket.socket] = []
    look = server.state.audit.look
    try:
        for _ in range(9):
            assert await look() == []
            opened += socket.socketpair()
        [leak] = await look()
        assert "more and more" in leak.text
    finally:
        for each in opened:
            each.close()


@pytest.mark.server(step_seconds=0.01, http=HttpConfig(resume_seconds=0.5))
async def test_nothing_that_lives_longer_by_design_is_a_leak(
    server: FakeServer, client: httpx.AsyncClient, is_remote: bool
) -> None:
    look = server.state.audit.look
    # The connection stays open, and the blocks of the prompt stay cached.
    await client.post(PATH, json=BODY)
    assert server.engine.counters().num_cached_blocks
    for _ in range(3):
        await wait_idle(server)
        assert await look() == []
    long = {"input": "a", "max_output_tokens": 200, "background": True}
    begun = (await client.post("/v1/responses", json=long)).json()
    # The request ended, and its response goes on.
    for _ in range(3):
        assert not server.state.is_idle
        assert await look() == []
        await client.post(PATH, json=BODY | {"max_tokens": 3})
    await client.post(f"/v1/responses/{begun['id']}/cancel")
    # A stream without its connection, which may be taken up again.
    body = BODY | {"max_tokens": 100, "stream": True}
    async with client.stream("POST", PATH, json=body):
        await wait_running(server)
    while server.state.lifecycle.num_active:
        await trio.sleep(0.001)
    assert server.state.resumable.num_streams == 1
    for _ in range(3):
        assert await look() == []
    await client.delete("/v1/requests")
    body = BODY | {"max_tokens": 100, "stream": True}
    async with client.stream("POST", PATH, json=body):
        await wait_running(server)
        for _ in range(3):
            assert await look() == []
    await wait_idle(server)
    # A library may open something late and keep it.
    kept = socket.socketpair()
    for _ in range(3):
        assert await look() == []
    for each in kept:
        each.close()


@pytest.mark.server(open=open_fake_pooling_server, step_seconds=0.01)
async def test_texts_that_outlive_their_request_are_found(
    server: Any, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def embed(request_id: str) -> None:
        headers = {"X-Request-Id": request_id}
        body = {"input": ["a", "b"]}
        await client.post("/v1/embeddings", json=body, headers=headers)

    await embed("one")
    assert await find(server) == []
    monkeypatch.setattr(server.engine._core, "close", lambda flow, kept: None)
    await embed("two")
    await wait_idle(server)
    assert name(await find(server)) == [("slots", "two")]


async def test_an_audit_that_fails_ends_nothing(
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = ServerState(config=HttpConfig())

    def fail() -> None:
        raise OSError("no descriptors")

    monkeypatch.setattr(audit, "inspect_process", fail)
    with trio.move_on_after(130):
        await state.audit.run()
    assert caplog.text.count("the leak audit failed") == 2
    monkeypatch.undo()
    with trio.move_on_after(130):
        await state.audit.run()
    assert state.audit.num_audits == 2
