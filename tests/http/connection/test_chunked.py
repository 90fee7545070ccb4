"""Chunked bodies: small chunks are joined, and all else is as in h11."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import h11
from hypothesis import given, strategies as st
import pytest
import raw_http
import trio

from trioserve.http.connection.chunked import MAX_CHUNKS_AT_ONCE
from trioserve.http.connection.http1 import StrictConnection
from trioserve.http.connection.server import CHUNK_SIZE

HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
TINY = b"1\r\n \r\n"
SMALL = b"40\r\n" + b" " * 64 + b"\r\n"

Events = list[h11.Event]


def make_connection() -> StrictConnection:
    return StrictConnection(enable_h2c=False, max_incomplete_event_size=65_536)


def read_events(connection: h11.Connection, reads: list[bytes]) -> Iterator[h11.Event]:
    for data in [HEAD, *reads]:
        connection.receive_data(data)
        while not isinstance(event := connection.next_event(), type):
            yield event


def list_events(connection: h11.Connection, reads: list[bytes]) -> Events:
    """Return the events until the first error."""
    events: Events = []
    try:
        for event in read_events(connection, reads):
            events.append(event)
    except h11.RemoteProtocolError:
        pass
    return events


def join_data(events: Events) -> bytes:
    return b"".join(event.data for event in events if isinstance(event, h11.Data))


def test_one_event_holds_many_chunks_and_one_turn_parses_a_bounded_number() -> None:
    reads = [SMALL * 10_000] * 4
    events = list_events(make_connection(), reads)
    sizes = [len(event.data) for event in events if isinstance(event, h11.Data)]
    assert sum(sizes) == 40_000 * 64
    assert max(sizes) <= 64 * MAX_CHUNKS_AT_ONCE
    assert len(sizes) <= 40_000 / MAX_CHUNKS_AT_ONCE + len(reads)


@pytest.mark.parametrize(("read_size", "size"), [(1, 1), (5, 32), (4096, 1)])
def test_a_body_of_small_chunks_is_refused_before_many_are_read(
    read_size: int, size: int
) -> None:
    chunk = b"%x\r\n%b\r\n" % (size, bytes(size))
    wire = chunk * 1_000
    reads = [wire[i : i + read_size] for i in range(0, len(wire), read_size)]
    connection, num_bytes = make_connection(), 0
    with pytest.raises(h11.RemoteProtocolError, match="chunks are too small"):
        for event in read_events(connection, reads):
            num_bytes += len(event.data) if isinstance(event, h11.Data) else 0
    # 256 chunks are free, and as many fit into one event as are parsed at once.
    most = 256 / (1 - size / 64) + MAX_CHUNKS_AT_ONCE
    assert num_bytes <= most * size


@pytest.mark.parametrize("num_chunks", [1, 256])
def test_few_chunks_may_be_small(num_chunks: int) -> None:
    events = list_events(make_connection(), [TINY * num_chunks + b"0\r\n\r\n"])
    assert join_data(events) == b" " * num_chunks
    assert isinstance(events[-1], h11.EndOfMessage)


def test_small_chunks_are_taken_where_others_are_large() -> None:
    wire = (TINY * 100 + b"8000\r\n" + bytes(32_768) + b"\r\n") * 20
    events = list_events(make_connection(), [wire, b"0\r\n\r\n"])
    assert len(join_data(events)) == 20 * (100 + 32_768)
    assert isinstance(events[-1], h11.EndOfMessage)


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("line", [b"a:\r\n", b"a:\n", b"a: b\r\n c\r\n"])
def test_trailers_of_many_lines_are_refused_before_they_are_parsed(
    line: bytes, is_whole: bool
) -> None:
    trailers = line * 200 + b"\r\n" * is_whole
    with pytest.raises(h11.RemoteProtocolError, match="more than 128 fields"):
        list(read_events(make_connection(), [TINY + b"0\r\n" + trailers]))


@pytest.mark.parametrize(
    "chunk",
    [
        b"1;x\r\n \r\n",
        b"1 \r\n \r\n",
        b"1;\r\r\n \r\n",
        b"00000000000000000001\r\n \r\n",
        b"1;" + b"x" * 32 + b"\r\n \r\n",
    ],
)
def test_no_spelling_of_a_chunk_escapes_the_join(chunk: bytes) -> None:
    assert len(list_events(make_connection(), [chunk * 256])) <= 3


def test_a_body_that_is_nearly_all_extensions_is_refused() -> None:
    chunk = b"1;" + b"x" * 100 + b"\r\n \r\n"
    connection = make_connection()
    with pytest.raises(h11.RemoteProtocolError, match="extensions"):
        list(read_events(connection, [chunk * 250]))


def test_large_chunks_with_short_extensions_are_taken() -> None:
    chunk = b"1000;" + b"x" * 100 + b"\r\n" + bytes(4096) + b"\r\n"
    events = list_events(make_connection(), [chunk] * 1_000)
    assert len(join_data(events)) == 4096 * 1_000


def test_long_trailers_are_no_extensions() -> None:
    trailers = b"X: " + b"y" * 30_000 + b"\r\n\r\n"
    events = list_events(make_connection(), [TINY + b"0\r\n" + trailers])
    assert isinstance(events[-1], h11.EndOfMessage)


CHUNKS = st.sampled_from(
    [
        *(TINY, b"3\r\nabc\r\n", b"A;x=y\r\n0123456789\r\n", b"1 \t\r\n \r\n"),
        *(b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"0;x\r\n\r\n", b"00\r\n\r\n"),
        *(b"1;\r\r\n \r\n", b"1;\n\r\n \r\n", b"1 x\r\n \r\n", b"+1\r\n \r\n"),
        *(b"3\r\nabcXX", b"1\n \n", b"-1\r\n", b"\r\n", b"g\r\n", b"1", b"\n", b" "),
        *(b"2\r\n\r\n\r\n", b"1;" + b"x" * 99 + b"\r\n \r\n", b"f" * 21 + b"\r\n"),
    ]
)


@given(wire=st.lists(CHUNKS, max_size=12).map(b"".join), data=st.data())
def test_nothing_is_read_in_another_way_than_h11_reads_it(
    wire: bytes, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(wire)), max_size=6)))
    reads = [wire[i:j] for i, j in pairwise([0, *cuts, len(wire)]) if i < j]
    plain, joined = h11.Connection(h11.SERVER), make_connection()
    expected, actual = list_events(plain, reads), list_events(joined, reads)
    assert join_data(actual) == join_data(expected)
    assert [e for e in actual if not isinstance(e, h11.Data)] == [
        e for e in expected if not isinstance(e, h11.Data)
    ]
    assert joined.their_state is plain.their_state
    assert joined.trailing_data == plain.trailing_data


async def test_others_have_their_turn_between_the_messages_of_small_chunks(
    nursery: trio.Nursery,
) -> None:
    num_chunks = 40_000
    num_turns = 0
    turns: list[int] = []

    async def take_turns() -> None:
        nonlocal num_turns
        while True:
            await trio.lowlevel.checkpoint()
            num_turns += 1

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http", "no lifespan"
        num_bytes = 0
        while (message := await receive()).get("more_body"):
            turns.append(num_turns)
            num_bytes += len(message["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % num_bytes})

    with trio.fail_after(60):
        port = await raw_http.serve_app(nursery, app)
        async with await raw_http.connect(port) as client:
            nursery.start_soon(take_turns)
            await client.send_all(HEAD + SMALL * num_chunks + b"0\r\n\r\n")
            await raw_http.read_until(client, b"%d" % (64 * num_chunks))
    assert len(turns) < num_chunks / 100
    # trio shuffles the tasks of a turn, so two messages may come in one turn.
    assert all(earlier < later for earlier, later in zip(turns, turns[2:]))
    nursery.cancel_scope.cancel()


async def test_a_stranger_who_connects_again_and_again_costs_as_little_each_time(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    class CountingConnection(StrictConnection):
        def receive_data(self, data: bytes) -> None:
            sizes.append(len(data))
            super().receive_data(data)

    monkeypatch.setattr(
        "trioserve.http.connection.http1.StrictConnection", CountingConnection
    )
    with trio.fail_after(60):
        port = await raw_http.serve_app(nursery, raw_http.answer_well)
        for _ in range(10):
            sizes.clear()
            refusal = await raw_http.ask(port, HEAD + TINY * 100_000)
            assert refusal.startswith(b"HTTP/1.1 400")
            # The rest is dropped unread. The head may come alone.
            assert sum(sizes) <= 2 * CHUNK_SIZE
            answer = await raw_http.ask(
                port, b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
            )
            assert b"well" in answer
    nursery.cancel_scope.cancel()
