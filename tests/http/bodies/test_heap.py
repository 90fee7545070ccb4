"""Memory that requests freed is given back to the operating system."""

from __future__ import annotations

import gc
from pathlib import Path

import httpx2 as httpx
import pytest
import trio

from trioserve.errors import ContextLengthExceeded
from trioserve.http.bodies.memory import (
    QUIET_SECONDS,
    WORTH_BYTES,
    HeapTrimmer,
    find_trim,
)
from trioserve.testing.server import FakeServer, open_fake_server

NUM_UPLOADS = 4
UPLOAD_BYTES = 2**25
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % (UPLOAD_BYTES + 1)
)


class Heap:
    """Records the times of its trims."""

    def __init__(self) -> None:
        self.trimmed_at: list[float] = []
        self._began = trio.current_time()
        self.trimmer = HeapTrimmer(self._trim)

    async def _trim(self) -> None:
        self.trimmed_at.append(trio.current_time() - self._began)

    async def free(self, num_bytes: int, *, times: int, seconds: float) -> None:
        """Free `num_bytes` several times, and wait `seconds` after each time."""
        for _ in range(times):
            self.trimmer.note_freed(num_bytes)
            await trio.sleep(seconds)


async def test_much_that_was_freed_is_given_back_a_second_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    heap = Heap()
    await heap.free(WORTH_BYTES // 4, times=4, seconds=0)
    await trio.sleep(60)
    assert heap.trimmed_at == [QUIET_SECONDS]
    await heap.free(WORTH_BYTES - 1, times=1, seconds=60)
    assert heap.trimmed_at == [QUIET_SECONDS]
    await heap.free(1, times=1, seconds=60)
    assert len(heap.trimmed_at) == 2


async def test_memory_that_is_soon_taken_again_is_given_back_now_and_then(
    autojump_clock: trio.testing.MockClock,
) -> None:
    heap = Heap()
    await heap.free(WORTH_BYTES, times=300, seconds=0.1)
    assert 2 <= len(heap.trimmed_at) <= 3


async def test_a_trim_that_finds_no_thread_is_left_for_another_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    num_calls = 0

    async def trim() -> None:
        nonlocal num_calls
        num_calls += 1
        raise RuntimeError("can't start new thread")

    trimmer = HeapTrimmer(trim)
    for _ in range(2):
        trimmer.note_freed(WORTH_BYTES)
        await trio.sleep(60)
    assert num_calls == 2


@pytest.mark.parametrize("num_prompts", [1, 2])
async def test_an_error_that_was_answered_holds_nothing_of_its_request(
    tokenizer_folder: Path, num_prompts: int
) -> None:
    body = {"prompt": ["a " * 100_000] * num_prompts, "max_tokens": 1}
    async with open_fake_server(tokenizer_folder) as server:
        gc.collect()
        gc.disable()
        try:
            async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
                answer = await client.post("/v1/completions", json=body)
            assert answer.json()["error"]["param"] == "prompt"
            errors = [o for o in gc.get_objects() if type(o) is ContextLengthExceeded]
        finally:
            gc.enable()
    assert not [error for error in errors if error.__traceback__ is not None]


@pytest.mark.slow
@pytest.mark.skipif(find_trim() is None, reason="glibc alone has malloc_trim")
async def test_bodies_leave_no_memory_behind(
    tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trioserve.http.bodies.memory.QUIET_SECONDS", 0.01)
    others: list[bytes] = []
    async with open_fake_server(tokenizer_folder) as server:
        with trio.fail_after(60):
            await upload_and_leave(server)
            before = read_resident_bytes()
            for _ in range(3):
                others += await upload_and_leave(server)
            with trio.move_on_after(20):
                while read_resident_bytes() > before + WORTH_BYTES:
                    await trio.sleep(0.01)
    assert read_resident_bytes() <= before + WORTH_BYTES


async def upload_and_leave(server: FakeServer) -> list[bytes]:
    """Upload bodies and leave; return objects that lie above them in memory."""
    clients = [
        await trio.open_tcp_stream("127.0.0.1", server.port) for _ in range(NUM_UPLOADS)
    ]
    part = bytes(2**20)
    async with trio.open_nursery() as nursery:
        for client in clients:
            packet = [HEAD] + [part] * (UPLOAD_BYTES // len(part))
            nursery.start_soon(send_parts, client, packet)
    bodies = server.state.bodies
    while bodies.num_bytes < NUM_UPLOADS * UPLOAD_BYTES:
        await trio.sleep(0.01)
    others = [bytes(50_000) for _ in range(100)]
    for client in clients:
        await client.aclose()
    while bodies.num_bytes:
        await trio.sleep(0.01)
    return others


async def send_parts(client: trio.SocketStream, parts: list[bytes]) -> None:
    for part in parts:
        await client.send_all(part)


def read_resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024
