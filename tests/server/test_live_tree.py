"""A running request is shown with its blocks, its worker and its tasks."""

from __future__ import annotations

from collections.abc import Iterator
import json
import threading
from typing import Any

import httpx2 as httpx
import pytest
import trio

from trioserve.http.live.request_details import describe_tasks
from trioserve.testing.server import FakeServer

PATH = "/v1/chat/completions"
BODY = {
    "messages": [{"role": "user", "content": "a secret"}],
    "max_tokens": 150,
    "n": 2,
    "stream": True,
    "timeout": 15,
}


class Client:
    def __init__(self, server: FakeServer, http: httpx.AsyncClient) -> None:
        self.server = server
        self._http = http

    async def show(self, request_id: str = "one") -> Any:
        return (await self._http.get(f"/v1/requests/{request_id}")).json()

    async def wait_for(self, worker: str) -> Any:
        while True:
            found = await self.show()
            if "data" in found and found["data"][0]["worker"] == worker:
                [details] = found["data"]
                return details
            await trio.sleep(0.005)

    async def send(self) -> None:
        await self._http.post(PATH, json=BODY, headers={"X-Request-Id": "one"})


@pytest.fixture
def asker(server: FakeServer, client: httpx.AsyncClient) -> Client:
    return Client(server, client)


def list_tasks(task: Any) -> Iterator[Any]:
    yield task
    for each in task["tasks"]:
        yield from list_tasks(each)


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(
            name, marks=pytest.mark.server(step_seconds=0.02, is_remote=is_remote)
        )
        for name, is_remote in [("here", False), ("in_a_process", True)]
    ],
)
async def test_a_request_on_the_device(asker: Client, where: str) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asker.send)
        while not (details := await asker.wait_for("device"))["completion_tokens"]:
            await trio.sleep(0.005)
        held = await asker.server.engine._core.inspect()
        assert 2 <= details["kv_blocks"] <= sum(each.num_blocks for each in held.work)
        assert 0 < details["deadline_seconds"] < details["timeout_seconds"] == 15
        assert details["age_seconds"] + details["deadline_seconds"] == pytest.approx(
            15, abs=1
        )
        tasks = list(list_tasks(details["task"]))
        names = [each["name"].rpartition(".")[2] for each in tasks]
        assert sorted(names) == ["_handle", "handle_messages", "handle_request"]
        [reader] = [each for each in tasks if each["name"].endswith("_request")]
        assert any("TokenStream.__anext__" in each for each in reader["awaits"])
        # Names of functions, and nothing of the request.
        assert "secret" not in json.dumps(details)
        nursery.cancel_scope.cancel()


async def test_a_request_that_waits_for_a_thread(asker: Client) -> None:
    gate = threading.Event()
    assert asker.server.state.engine is not None
    workers = asker.server.state.engine.renderer.workers
    workers.resize(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(workers.run, gate.wait)
        nursery.start_soon(asker.send)
        details = await asker.wait_for("queue for a renderer thread")
        assert details["kv_blocks"] == 0
        assert details["phase"] == "render"
        gate.set()
        nursery.cancel_scope.cancel()


@pytest.mark.server(step_seconds=3600)
async def test_several_requests_of_one_id_are_bounded(asker: Client) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(18):
            nursery.start_soon(asker.send)
        while (found := await asker.show()).get("num_left_out") != 2:
            await trio.sleep(0.005)
        assert len(found["data"]) == 16
        nursery.cancel_scope.cancel()


async def descend(depth: int) -> None:
    if depth:
        await descend(depth - 1)
    await trio.sleep_forever()


async def test_a_tree_is_bounded() -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(descend, 100)
        await trio.testing.wait_all_tasks_blocked()
        tree = describe_tasks(trio.lowlevel.current_task())
        assert len(tree.tasks) == 63
        assert tree.num_tasks_left_out == 37
        assert len(tree.tasks[0].awaits) == 32
        nursery.cancel_scope.cancel()
