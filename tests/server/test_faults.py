"""Faults around one server, in virtual time; behind each, it holds as much as a fresh one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
import time

import pytest
from raw_http import read_all, write_post
import trio
import trio.testing
from whole_server import (
    SimulatedLimits,
    SimulatedModel,
    SimulatedServer,
    open_simulated_server,
    run_virtually,
)
from whole_server.sockets import MemorySocket

from trioserve.config import HttpConfig
from trioserve.http.record.progress import Phase
from trioserve.types.plan import StepPlan

# Behind it, no timeout of the server is left.
SETTLED = 60.0

STREAM = {"prompt": "Once upon a time", "max_tokens": 8, "stream": True}
WHOLE = STREAM | {"stream": False}


def write_completion(fields: dict[str, object]) -> bytes:
    return write_post("/v1/completions", fields, Connection="close")


async def ask(server: SimulatedServer, fields: dict[str, object]) -> bytes:
    stream = server.connect()
    await stream.send_all(write_completion(fields))
    return await read_all(stream)


def reset(stream: trio.SocketStream) -> None:
    sock = stream.socket
    assert isinstance(sock, MemorySocket)
    sock.reset()


@pytest.fixture(scope="module")
def model(tokenizer_folder: Path) -> SimulatedModel:
    return SimulatedModel(tokenizer_folder)


@pytest.fixture
def play(model: SimulatedModel) -> Callable[..., None]:
    """Return a function that plays a story, behind which the server is like a fresh one."""

    def play(
        story: Callable[[SimulatedServer], Awaitable[None]],
        limits: SimulatedLimits = SimulatedLimits(),
    ) -> None:
        async def main() -> None:
            with trio.fail_after(10_000):
                async with open_simulated_server(model, limits) as server:
                    fresh = server.list_held()
                    await story(server)
                    if not server.has_ended:
                        assert b" 200 " in await ask(server, WHOLE)
                    await trio.sleep(SETTLED)
                    if not server.has_ended:
                        assert server.list_held() == fresh
                    assert server.list_held()["live requests"] == 0
                    assert server.list_held()["connections"] == 0

        run_virtually(main)

    return play


# The phases of a request. Each has limits with which it lasts long.

LONG = 20.0
LIMITS: dict[Phase, SimulatedLimits] = {
    "body": SimulatedLimits(),
    "render": SimulatedLimits(render_seconds=LONG),
    "queue": SimulatedLimits(max_num_seqs=1, seconds_of=lambda plan: 1.0),
    "prefill": SimulatedLimits(seconds_of=lambda plan: 5.0),
    "decode": SimulatedLimits(seconds_of=lambda plan: 1.0),
    "write": SimulatedLimits(),
}


@asynccontextmanager
async def begin(server: SimulatedServer, phase: Phase) -> AsyncIterator[None]:
    """Hold a request in some phase at the beginning of the block."""
    packet = write_completion(STREAM if phase == "decode" else WHOLE)
    # Its answer is longer than that.
    stream = server.connect(capacity=50 if phase == "write" else 65_536)
    async with trio.open_nursery() as nursery:
        if phase == "queue":
            nursery.start_soon(ask, server, WHOLE)
            await wait_for(server, "prefill")
        nursery.start_soon(stream.send_all, packet[:-5] if phase == "body" else packet)
        await wait_for(server, phase)
        if phase == "write":
            await trio.sleep(1.0)
        yield
        stream.socket.close()


async def wait_for(server: SimulatedServer, phase: Phase) -> None:
    with trio.fail_after(30):
        while not server.state.lifecycle.count_phases()[phase]:
            await trio.sleep(0.001)


phases = pytest.mark.parametrize("phase", LIMITS)


@phases
def test_a_drain_ends_requests_of_every_phase(
    play: Callable[..., None], phase: Phase
) -> None:
    async def story(server: SimulatedServer) -> None:
        async with begin(server, phase):
            began = trio.current_time()
            server.state.lifecycle.begin_drain()
            await server.wait_ended()
            # The drain, two seconds for the ends of streams, and one for a stalled write.
            assert trio.current_time() - began <= 30 + 2 + 1

    play(story, LIMITS[phase])


@phases
def test_a_client_may_leave_in_every_phase(
    play: Callable[..., None], phase: Phase
) -> None:
    async def story(server: SimulatedServer) -> None:
        async with begin(server, phase):
            pass
        # A thread goes on without its client.
        await trio.sleep(20 * LONG if phase == "render" else 0.0)

    play(story, LIMITS[phase])


@phases
def test_a_device_may_break_in_every_phase(
    play: Callable[..., None], phase: Phase
) -> None:
    """The engine starts again, and those whose tokens it had learn of it."""
    limits = LIMITS[phase]
    broken: list[bool] = []

    def count_seconds(plan: StepPlan) -> float:
        if broken:
            broken.clear()
            raise RuntimeError("the device is gone")
        return limits.seconds_of(plan)

    async def story(server: SimulatedServer) -> None:
        async with begin(server, phase):
            broken.append(True)
            answer = await ask(server, STREAM)
            assert b" 500 " in answer or b" 503 " in answer or b'"error"' in answer
            assert not broken
            # It needs a second.
            await trio.sleep(2.0)
        await trio.sleep(20 * LONG if phase == "render" else 0.0)

    play(story, replace(limits, restarts=True, seconds_of=count_seconds))


@pytest.mark.parametrize("fields", [STREAM, WHOLE], ids=["stream", "whole"])
def test_a_reset_may_come_at_each_step_of_a_request(
    play: Callable[..., None], fields: dict[str, object]
) -> None:
    """The request is sent in three parts, and reset behind the n-th step of any task."""

    async def story(server: SimulatedServer) -> None:
        packet, answered = write_completion(fields), False
        num_steps = 0
        while not answered:
            answered = b" 200 " in await send_until(server, packet, num_steps)
            num_steps += 3
        # Otherwise the steps would not belong to the request.
        assert num_steps > 60

    play(story)


class _Fuse(trio.abc.Instrument):
    """Calls a function behind some number of steps."""

    def __init__(self, num_steps: int, call: Callable[[], None]) -> None:
        self._num_steps = num_steps
        self._call = call

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._num_steps -= 1
        if self._num_steps == 0:
            self._call()


async def send_until(server: SimulatedServer, packet: bytes, num_steps: int) -> bytes:
    """Send a request that is reset behind so many steps; returns its answer."""
    stream = server.connect()
    fuse = _Fuse(num_steps + 1, lambda: reset(stream))
    trio.lowlevel.add_instrument(fuse)
    answer = b""
    try:
        for start in range(0, len(packet), len(packet) // 2):
            await stream.send_all(packet[start : start + len(packet) // 2])
            await trio.sleep(0.001)
        answer = await read_all(stream)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    finally:
        trio.lowlevel.remove_instrument(fuse)
    return answer if answer.endswith((b"}", b"0\r\n\r\n")) else b""


def test_200_clients_may_vanish_at_once(play: Callable[..., None]) -> None:
    async def story(server: SimulatedServer) -> None:
        streams = [server.connect() for _ in range(200)]
        for number, stream in enumerate(streams):
            await stream.send_all(write_completion(STREAM if number % 2 else WHOLE))
        while not server.engine.statistics().scheduler.num_running:
            await trio.sleep(0.001)
        for stream in streams:
            reset(stream)

    play(story, SimulatedLimits(render_seconds=0.0))


def test_the_clock_on_the_wall_may_jump(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])

    async def story(server: SimulatedServer) -> None:
        for jump in (86_400.0 * 365, -86_400.0 * 3650):
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(jump_soon, jump)
                answer = await ask(server, WHOLE | {"timeout": 5})
            assert b" 200 " in answer
            assert b'"finish_reason":"length"' in answer
            assert trio.current_time() - began < 1.0

    async def jump_soon(seconds: float) -> None:
        await trio.sleep(0.05)
        now[0] += seconds

    play(story)


def test_a_process_may_be_stopped_for_an_hour(play: Callable[..., None]) -> None:
    """Behind SIGSTOP and SIGCONT all deadlines have passed at once."""

    async def story(server: SimulatedServer) -> None:
        answers: list[bytes] = []

        async def note(fields: dict[str, object]) -> None:
            answers.append(await ask(server, fields))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, WHOLE)
            nursery.start_soon(note, WHOLE | {"timeout": 60})
            await trio.sleep(0.05)
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, trio.testing.MockClock)
            clock.jump(3600.0)
        statuses = sorted(answer.split(b" ")[1] for answer in answers)
        assert statuses in ([b"200", b"200"], [b"200", b"504"])

    play(story, SimulatedLimits(http=HttpConfig(refuse_late=False)))
