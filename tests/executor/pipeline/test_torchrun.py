"""The environment of torchrun, and the rendezvous of its stages with the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
import os
import socket
import subprocess
import sys

import pytest
import trio

from trioserve.config import ParallelConfig
from trioserve.errors import InvalidConfig, StagesNotMet
from trioserve.executor.pipeline.rendezvous import (
    Address,
    Hello,
    Rendezvous,
    StageConnection,
    connect_stage,
)
from trioserve.executor.pipeline.torchrun import Torchrun, find_torchrun

ENVIRONMENT = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}


def test_processes_of_torchrun_are_recognised() -> None:
    assert find_torchrun({"RANK": "2", "WORLD_SIZE": "4"}) is None
    assert find_torchrun(ENVIRONMENT) == Torchrun(
        rank=2,
        world_size=4,
        local_rank=0,
        local_world_size=2,
        master_addr="10.0.0.1",
        master_port=29500,
        num_restarts=1,
    )


@pytest.mark.parametrize(
    ("address", "local_world_size", "is_on_one_machine"),
    [("10.0.0.1", "2", False), ("10.0.0.1", "4", True), ("127.0.0.1", "2", True)],
)
def test_stages_of_one_machine_need_no_network(
    address: str, local_world_size: str, is_on_one_machine: bool
) -> None:
    torchrun = find_torchrun(
        ENVIRONMENT | {"MASTER_ADDR": address, "LOCAL_WORLD_SIZE": local_world_size}
    )
    assert torchrun is not None
    assert torchrun.is_on_one_machine == is_on_one_machine


def test_there_are_as_many_processes_as_stages() -> None:
    torchrun = find_torchrun(ENVIRONMENT)
    assert torchrun is not None
    torchrun.check(ParallelConfig(pipeline_parallel_size=4))
    with pytest.raises(InvalidConfig, match="--pipeline-parallel-size: is 2, but"):
        torchrun.check(ParallelConfig(pipeline_parallel_size=2))


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "2"])
def test_every_rank_refuses_another_number_of_stages(rank: str) -> None:
    """No other process has to run for that."""
    done = subprocess.run(
        [sys.executable, "-m", "trioserve", "serve", "/no/model"],
        env=os.environ | ENVIRONMENT | {"RANK": rank},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "trioserve: --pipeline-parallel-size: is 1, but torchrun has started 4 "
        "processes, and each of them is a stage\n"
    )


HOST = "127.0.0.1"


@pytest.fixture
async def listener() -> AsyncIterator[trio.SocketListener]:
    [listener] = await trio.open_tcp_listeners(0, host=HOST)
    async with listener:
        yield listener


def find_address(rendezvous: Rendezvous, listener: trio.SocketListener) -> Address:
    port = listener.socket.getsockname()[1]
    return Address(host=HOST, port=port, secret=rendezvous.secret)


def make_hello(rank: int) -> Hello:
    return Hello(rank=rank, local_rank=rank % 2, num_local_ranks=2)


async def gather(rendezvous: Rendezvous, found: list[StageConnection]) -> None:
    found.extend(await rendezvous.gather())


async def test_stages_come_in_any_order_and_are_distinguished(
    listener: trio.SocketListener,
) -> None:
    rendezvous = Rendezvous(listener, num_ranks=4)
    address = find_address(rendezvous, listener)
    found: list[StageConnection] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gather, rendezvous, found)
            stages = [await connect_stage(address, make_hello(i)) for i in (3, 1, 2)]
    assert [connection.hello for connection in found] == [
        make_hello(i) for i in (1, 2, 3)
    ]
    await found[0].sock.send(b"begin")
    assert await stages[1].recv(100) == b"begin"
    # Both ends notice a machine that is lost, and that cannot close its connections.
    for sock in (*(connection.sock for connection in found), *stages):
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
    rendezvous.close()
    for stage in stages:
        assert await stage.recv(100) == b""
        stage.close()


async def test_connections_of_no_stage_are_closed_and_stages_still_come(
    listener: trio.SocketListener,
) -> None:
    """They send a wrong secret, a wrong number or other bytes, or repeat a stage."""
    rendezvous = Rendezvous(listener, num_ranks=3)
    address = find_address(rendezvous, listener)
    wrong = Address(host=address.host, port=address.port, secret=bytes(32))
    found: list[StageConnection] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gather, rendezvous, found)
            first = await connect_stage(address, make_hello(1))
            strangers = [
                await connect_stage(wrong, make_hello(2)),
                await connect_stage(address, make_hello(0)),
                await connect_stage(address, make_hello(3)),
                await connect_stage(address, make_hello(1)),
            ]
            for stranger in strangers:
                assert await stranger.recv(100) == b""
                stranger.close()
            async with await trio.open_tcp_stream(HOST, address.port) as browser:
                await browser.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10)
                with pytest.raises(trio.BrokenResourceError):
                    while await browser.receive_some():
                        pass
                    raise trio.BrokenResourceError("it hung up in order")
            async with await trio.open_tcp_stream(HOST, address.port) as leaver:
                await leaver.send_all(b"half a hello")
            second = await connect_stage(address, make_hello(2))
    assert [connection.hello.rank for connection in found] == [1, 2]
    rendezvous.close()
    first.close()
    second.close()


async def test_silent_connections_are_closed(
    listener: trio.SocketListener,
) -> None:
    rendezvous = Rendezvous(listener, num_ranks=2, hello_seconds=0.3)
    address = find_address(rendezvous, listener)
    found: list[StageConnection] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gather, rendezvous, found)
            async with await trio.open_tcp_stream(HOST, address.port) as silent:
                assert await silent.receive_some() == b""
            stage = await connect_stage(address, make_hello(1))
    stage.close()
    rendezvous.close()


async def test_a_stage_that_does_not_come_is_named(
    listener: trio.SocketListener,
) -> None:
    rendezvous = Rendezvous(listener, num_ranks=4, come_seconds=0.3)
    address = find_address(rendezvous, listener)
    stage = await connect_stage(address, make_hello(2))
    with pytest.raises(StagesNotMet, match="rank 1, rank 3 did not connect within"):
        await rendezvous.gather()
    stage.close()
    rendezvous.close()


async def test_a_stage_tells_that_there_is_no_engine(
    listener: trio.SocketListener,
) -> None:
    address = find_address(Rendezvous(listener, num_ranks=2), listener)
    await listener.aclose()
    with pytest.raises(StagesNotMet, match=f"cannot be reached at {HOST}"):
        await connect_stage(address, make_hello(1))
