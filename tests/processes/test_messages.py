"""Messages between processes: they arrive as sent, and leave nothing behind."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
import os
import socket
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trioserve.processes import Descriptor, MessageStream, PeerGone, pack
from trioserve.types.pooling import PoolingInput
from trioserve.types.tensors import TensorBytes


class Text(msgspec.Struct, frozen=True, tag=True):
    text: str


class Tensors(msgspec.Struct, frozen=True, tag=True):
    tensors: tuple[TensorBytes, ...]


class Anything(msgspec.Struct, frozen=True, tag=True):
    arguments: tuple[tuple[str, Mapping[str, object]], ...]


class Ids(msgspec.Struct, frozen=True, tag=True):
    input: PoolingInput


class Door(msgspec.Struct, frozen=True, tag=True):
    name: str
    sock: Descriptor


Message = Text | Tensors | Ids | Anything | Door
Stream = MessageStream[Any]


@asynccontextmanager
async def open_streams(
    ours: socket.socket, theirs: socket.socket
) -> AsyncIterator[tuple[Stream, Stream]]:
    streams = []
    for sock in (ours, theirs):
        sock.setblocking(False)
        streams.append(Stream(trio.socket.from_stdlib_socket(sock), receives=Message))
    async with trio.open_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(stream.run)
        nursery.cancel_scope.deadline = trio.current_time() + 10
        yield streams[0], streams[1]
        nursery.cancel_scope.cancel()
    for stream in streams:
        stream.close()


def open_tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        return ours, listener.accept()[0]


def make_tensor(num_bytes: int, fill: int) -> TensorBytes:
    return TensorBytes(
        data=bytes([fill]) * num_bytes, dtype="uint8", shape=(num_bytes,)
    )


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("open_sockets", [socket.socketpair, open_tcp])
async def test_messages_arrive_in_their_order(open_sockets: Any) -> None:
    """This holds for small and large ones, with and without tensors, on any socket."""
    messages = [
        Text("a"),
        Tensors((make_tensor(10, 1), make_tensor(100_001, 2), make_tensor(300_000, 3))),
        Text("b" * 1_000_000),
        *[Text(str(number)) for number in range(1000)],
        Tensors((make_tensor(2_000_000, 4),)),
        Ids(PoolingInput(token_ids=array("i", [1, 2, 3]))),
        # Arguments for plug-ins.
        Anything((("a", {"int": 1, "text": "b", "none": None, "list": [{"c": 0.5}]}),)),
        Tensors((make_tensor(100_000, 5),)),
    ]
    async with open_streams(*open_sockets()) as (ours, theirs):
        for message in messages:
            ours.send_nowait(message)
        assert [await theirs.receive() for _ in messages] == messages


async def test_large_tensors_do_not_go_through_the_socket() -> None:
    mail = pack(Tensors((make_tensor(1_000_000, 7),)))
    assert len(mail.data) < 100
    mail.close()


async def test_a_received_tensor_is_the_receivers_own() -> None:
    """The receiver may write to it, and the sender does not see that."""
    tensor = make_tensor(100_000, 7)
    mail = pack(Tensors((tensor,)))
    async with open_streams(*socket.socketpair()) as (ours, theirs):
        ours.post_nowait(mail)
        received = await theirs.receive()
        data = received.tensors[0].data
        data[0] = 8
        ours.send_nowait(received)
        assert received.tensors[0] != tensor
    assert tensor.data[0] == 7


async def test_no_descriptor_is_left() -> None:
    """Messages were received, never sent, or never read."""
    before = count_descriptors()
    ours, theirs = socket.socketpair()
    async with open_streams(ours, theirs) as (sender, receiver):
        for _ in range(20):
            sender.send_nowait(Tensors((make_tensor(100_000, 1),)))
        for _ in range(10):
            await receiver.receive()
        receiver.close()
        for _ in range(20):
            sender.send_nowait(Tensors((make_tensor(100_000, 1),)))
            await trio.testing.wait_all_tasks_blocked()
    assert count_descriptors() == before


async def test_receiving_from_an_ended_process_raises_peer_gone() -> None:
    async with open_streams(*socket.socketpair()) as (ours, theirs):
        theirs.send_nowait(Text("last"))
        await trio.testing.wait_all_tasks_blocked()
        theirs.close()
        assert await ours.receive() == Text("last")
        with pytest.raises(PeerGone):
            await ours.receive()
        # The peer is gone, but sending does not fail.
        ours.send_nowait(Text("hello?"))
        await trio.testing.wait_all_tasks_blocked()


async def test_half_a_message_is_not_delivered() -> None:
    ours, theirs = socket.socketpair()
    mail = pack(Text("abc"))
    theirs.sendall(mail.data[:-1])
    theirs.close()
    ours.setblocking(False)
    stream = Stream(trio.socket.from_stdlib_socket(ours), receives=Text)
    with pytest.raises(PeerGone):
        await stream.receive()
    stream.close()


async def test_a_socket_goes_to_the_receiver() -> None:
    """It arrives open, between other messages, and the sender's end is its own to close."""
    async with open_streams(*socket.socketpair()) as (ours, theirs):
        near, far = socket.socketpair()
        with near:
            ours.send_nowait(Text("before"))
            with far:
                ours.send_nowait(Door("a", Descriptor(far.fileno())))
            ours.send_nowait(Tensors((make_tensor(100_001, 2),)))
            assert await theirs.receive() == Text("before")
            door = await theirs.receive()
            assert (await theirs.receive()).tensors[0].data[0] == 2
            with socket.socket(fileno=door.sock.number) as arrived:
                arrived.send(b"hello")
                assert near.recv(10) == b"hello"


async def test_a_socket_that_nobody_receives_is_closed() -> None:
    async with open_streams(*socket.socketpair()) as (ours, theirs):
        near, far = socket.socketpair()
        with near:
            with far:
                ours.send_nowait(Door("a", Descriptor(far.fileno())))
                ours.send_nowait(Text("behind"))
            await theirs.listen()
            # The sender has closed its copy, too.
            await wait_all_tasks_blocked()
            theirs.close()
            near.setblocking(False)
            assert near.recv(10) == b""
