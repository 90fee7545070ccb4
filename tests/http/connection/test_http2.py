"""HTTP/2 peers that flood the server or keep their windows shut.

Most connections here have no socket, so that turns of the event loop can be counted and
deadlines pass in virtual time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
import itertools
import json

import h2.config
import h2.connection
from h2.errors import ErrorCodes
import h2.events
from h2.exceptions import DenialOfServiceError, FrameTooLargeError
from h2.settings import SettingCodes
from hpack import Decoder, Encoder
from http2_client import Http2Client, list_fields
import httpx2
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
import hypercorn.protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
import pytest
from quart import request
from quart_trio import QuartTrio
import raw_http
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trioserve.config import HttpConfig
from trioserve.http.connection import install_guard, make_config
from trioserve.http.connection.beginnings import PER_TURN
from trioserve.http.connection.fields import BoundedDecoder, BoundedEncoder
from trioserve.http.connection.frames import (
    FRAMES_PER_TURN,
    MAX_COSTLY_FRAMES,
    FrameBudget,
    FrameCutter,
)
from trioserve.http.connection.windows import CONNECTION, StalledWindows
from trioserve.testing.server import FakeServer

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def headers(
    stream_id: int, path: str, *flags: str, method: str = "GET"
) -> HeadersFrame:
    block = Encoder().encode(list_fields(path, method))
    return HeadersFrame(stream_id, block, flags=["END_HEADERS", *flags])


def serialize(*frames: Frame) -> bytes:
    return b"".join(frame.serialize() for frame in frames)


def parse(data: bytes) -> Iterator[Frame]:
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + length]))
        data = data[9 + length :]
        yield frame


@pytest.fixture(autouse=True)
def guarded(restored_hypercorn: None) -> None:
    install_guard(enable_h2c=True)


@dataclass
class AppState:
    """The counts of the app's requests, and the gate that they wait for."""

    gate: trio.Event = field(default_factory=trio.Event)
    num_begun: int = 0
    num_running: int = 0
    most_running: int = 0

    @contextmanager
    def count(self) -> Iterator[None]:
        self.num_begun += 1
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            yield
        finally:
            self.num_running -= 1


MEGABYTE = bytes(range(256)) * 2**12


def break_off() -> Iterator[bytes]:
    yield b"data: 1\n\n"
    raise ValueError("a stream that breaks off")


def make_app(state: AppState) -> QuartTrio:
    app = QuartTrio("test")
    app.config.update(RESPONSE_TIMEOUT=None, BODY_TIMEOUT=None)

    async def play(  # noqa: ASYNC900
        chunks: Iterator[bytes],
    ) -> AsyncIterator[bytes]:
        with state.count():
            for chunk in chunks:
                await trio.lowlevel.checkpoint()
                yield chunk  # noqa: ASYNC119

    @app.get("/health")
    async def health() -> str:
        with state.count():
            await trio.lowlevel.checkpoint()
        return "well"

    @app.get("/endless")
    async def endless() -> AsyncIterator[bytes]:
        await trio.lowlevel.checkpoint()
        return play(itertools.repeat(b"data: tick\n\n"))

    @app.get("/megabyte")
    async def megabyte() -> AsyncIterator[bytes]:
        await trio.lowlevel.checkpoint()
        return play(MEGABYTE[i : i + 200] for i in range(0, len(MEGABYTE), 200))

    @app.get("/short")
    async def short() -> AsyncIterator[bytes]:
        await trio.lowlevel.checkpoint()
        return play(iter([b"data: 1\n\n", b"data: 2\n\n"]))

    @app.get("/broken")
    async def broken() -> AsyncIterator[bytes]:
        await trio.lowlevel.checkpoint()
        return play(break_off())

    @app.get("/shielded")
    async def shielded() -> str:
        with state.count():
            with trio.CancelScope(shield=True):
                await state.gate.wait()
        return "well"

    @app.post("/echo")
    async def echo() -> bytes:
        with state.count():
            data: bytes = await request.get_data()
            return data

    return app


class LoopTurns(trio.abc.Instrument):
    """Counts the turns of the event loop."""

    num_turns = 0

    def after_io_wait(self, timeout: float) -> None:
        self.num_turns += 1


class Link:
    """The server's end of one connection, without a socket.

    Attributes:
      written: bytes that the server wrote and the client has not read.
      written_at: the turns of the event loop in which it wrote them.
      closed: set when the server closed the connection.
    """

    def __init__(self, links: Links, group: TaskGroup) -> None:
        self._turns = links.turns
        self.written = b""
        self.written_at: list[int] = []
        self.closed = trio.Event()
        self.protocol = hypercorn.protocol.H2Protocol(
            ASGIWrapper(make_app(links.state)),
            links.config,
            WorkerContext(None),
            group,
            ConnectionState({}),
            False,
            ("client", 1),
            ("server", 2),
            self._send,
        )

    async def _send(self, event: Event) -> None:
        if isinstance(event, RawData):
            self.written += event.data
            self.written_at.append(self._turns.num_turns)
        elif isinstance(event, Closed):
            self.closed.set()

    async def run(self) -> None:
        """Report the end of the connection, as the reader of a socket does."""
        await self.protocol.initiate()
        await self.closed.wait()
        await self.protocol.handle(Closed())

    async def receive(self, *data: bytes) -> None:
        for each in data:
            if not self.closed.is_set():
                await self.protocol.handle(RawData(each))

    def take(self) -> bytes:
        data, self.written = self.written, b""
        return data

    @property
    def end(self) -> int | None:
        """The code of the GOAWAY frame that the server ended with."""
        frames = list(parse(self.written))
        if self.closed.is_set() and frames and isinstance(frames[-1], GoAwayFrame):
            return frames[-1].error_code
        return None


@dataclass
class Links:
    """Opens connections to one app."""

    state: AppState = field(default_factory=AppState)
    config: Config = field(default_factory=lambda: make_config(bind=[]))
    turns: LoopTurns = field(default_factory=LoopTurns)

    @asynccontextmanager
    async def open_link(self) -> AsyncIterator[Link]:
        """Open a connection; leaving the block waits for all of its tasks."""
        async with TaskGroup() as group:
            link = Link(self, group)
            group.spawn(link.run)
            await wait_all_tasks_blocked()
            yield link
            link.closed.set()


@pytest.fixture
def links() -> Links:
    return Links()


@dataclass
class Client:
    """A client by h2. Data that it acknowledges opens its windows again."""

    link: Link
    connection: h2.connection.H2Connection = field(
        default_factory=h2.connection.H2Connection
    )
    events: list[h2.events.Event] = field(default_factory=list)
    frames: list[h2.events.DataReceived] = field(default_factory=list)
    bodies: dict[int, bytes] = field(default_factory=dict)

    async def begin(self, *, window: int = 65535, all_windows: int = 65535) -> None:
        """Send the preface, with windows in bytes for each stream and for all."""
        self.connection.initiate_connection()
        self.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        if all_windows > 65535:
            self.connection.increment_flow_control_window(all_windows - 65535)
        await self.flush()

    async def request(self, stream_id: int, path: str) -> None:
        self.connection.send_headers(stream_id, list_fields(path), end_stream=True)
        await self.flush()

    async def flush(self) -> None:
        """Exchange all that both sides have to send."""
        await self.link.receive(self.connection.data_to_send())
        await wait_all_tasks_blocked()
        for event in self.connection.receive_data(self.link.take()):
            if isinstance(event, h2.events.DataReceived):
                self.frames.append(event)
                body = self.bodies.get(event.stream_id, b"")
                self.bodies[event.stream_id] = body + event.data
            else:
                self.events.append(event)

    async def open_window(self, num_bytes: int, stream_id: int | None = None) -> None:
        self.connection.increment_flow_control_window(num_bytes, stream_id)
        await self.flush()

    async def read_slowly(self, stream_id: int, bytes_per_second: int) -> None:
        """Read a stream until it ends or is reset, or the connection ends."""
        num_read = 0
        while not (self.has_ended(stream_id) or self.resets or self.goaway):
            await trio.sleep(1)
            num_waiting = len(self.bodies.get(stream_id, b"")) - num_read
            num_bytes = min(num_waiting, bytes_per_second)
            self.connection.acknowledge_received_data(num_bytes, stream_id)
            num_read += num_bytes
            await self.flush()

    def take_frames(self) -> list[h2.events.DataReceived]:
        frames, self.frames = self.frames, []
        return frames

    def has_ended(self, stream_id: int) -> bool:
        return any(
            isinstance(event, h2.events.StreamEnded) and event.stream_id == stream_id
            for event in self.events
        )

    @property
    def resets(self) -> dict[int, int]:
        """The code that each stream was reset with."""
        return {
            event.stream_id: event.error_code
            for event in self.events
            if isinstance(event, h2.events.StreamReset)
        }

    @property
    def goaway(self) -> h2.events.ConnectionTerminated | None:
        ends = [
            event
            for event in self.events
            if isinstance(event, h2.events.ConnectionTerminated)
        ]
        return ends[-1] if ends else None


HELLO = PREFACE + serialize(SettingsFrame(0))
ENDLESS = serialize(
    SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 2**31 - 1}),
    WindowUpdateFrame(0, window_increment=2**30),
    headers(1, "/endless", "END_STREAM"),
)
POST = serialize(headers(1, "/echo", method="POST"))
RESET = serialize(RstStreamFrame(1, error_code=8))

# Real floods are longer; these keep the tests fast.
BURST = 160
NUM_FRAMES = 2 * BURST


def rapid_resets(reset: Callable[[int], Frame]) -> bytes:
    return b"".join(
        serialize(headers(stream_id, "/health", "END_STREAM"), reset(stream_id))
        for stream_id in range(1, 2 * NUM_FRAMES, 2)
    )


# The first bytes of a peer, and the bytes that it repeats for ever.
FLOODS: dict[str, tuple[bytes, bytes]] = {
    "ping": (b"", serialize(PingFrame(0, b"12345678")) * NUM_FRAMES),
    "ping ack": (b"", serialize(PingFrame(0, b"1", flags=["ACK"])) * NUM_FRAMES),
    "settings": (b"", serialize(SettingsFrame(0)) * NUM_FRAMES),
    "window update of the connection": (
        b"",
        serialize(WindowUpdateFrame(0, window_increment=1)) * NUM_FRAMES,
    ),
    "window update of a stream": (
        POST,
        serialize(WindowUpdateFrame(1, window_increment=1)) * NUM_FRAMES,
    ),
    "reset of one stream": (POST, RESET * NUM_FRAMES),
    "rapid reset": (b"", rapid_resets(lambda i: RstStreamFrame(i, error_code=8))),
    # The server resets the stream, so h2 does not count it any more.
    "rapid reset by an overflow": (
        b"",
        rapid_resets(lambda i: WindowUpdateFrame(i, window_increment=2**31 - 1)),
    ),
    "priority": (
        b"",
        b"".join(
            serialize(PriorityFrame(2 * i + 1, stream_weight=1))
            for i in range(NUM_FRAMES)
        ),
    ),
    "empty data": (POST, serialize(DataFrame(1)) * NUM_FRAMES),
    "data of a byte": (POST, serialize(DataFrame(1, b"x")) * NUM_FRAMES),
    "the end of a stream that was reset": (
        POST + RESET,
        serialize(DataFrame(1, flags=["END_STREAM"])) * NUM_FRAMES,
    ),
    "headers of a stream that was reset": (
        POST + RESET,
        serialize(headers(1, "/health")) * NUM_FRAMES,
    ),
    "frames of an unknown type": (b"", b"\0\0\1\x63\0\0\0\0\0x" * NUM_FRAMES),
}


@pytest.fixture
def short_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trioserve.http.connection.frames.MAX_COSTLY_FRAMES", BURST)


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_ends_its_own_connection_and_delays_no_other(
    short_burst: None, links: Links, name: str
) -> None:
    trio.lowlevel.add_instrument(links.turns)
    with trio.fail_after(30):
        async with links.open_link() as bystander, links.open_link() as peer:
            beginning, flood = FLOODS[name]
            await peer.receive(HELLO, beginning)
            await bystander.receive(PREFACE + ENDLESS)
            while not bystander.written_at:
                await trio.lowlevel.checkpoint()
            began_at = links.turns.num_turns
            await peer.receive(flood)
            num_turns = links.turns.num_turns - began_at
            turns = [turn for turn in bystander.written_at if turn >= began_at]
            await bystander.receive(RESET)
    trio.lowlevel.remove_instrument(links.turns)
    assert peer.end == ErrorCodes.ENHANCE_YOUR_CALM
    assert num_turns >= BURST / FRAMES_PER_TURN - 2
    # The app writes in one turn, and hypercorn sends in the next.
    assert len(turns) >= num_turns / 3 - 1
    assert max(b - a for a, b in itertools.pairwise(turns)) <= 3
    assert links.state.num_begun <= BURST + 1
    assert links.state.num_running == 0


def with_block(block: bytes, num_continuations: int, more: bytes) -> bytes:
    """Begin a request whose header block does not end."""
    frames = [ContinuationFrame(1, more)] * num_continuations
    return serialize(HeadersFrame(1, block), *frames)


def with_fields(num_fields: int) -> bytes:
    """A request that repeats one field of the table, one byte for each."""
    fields = [*list_fields("/health"), ("x", "y")]
    block = Encoder().encode(fields) + b"\xbe" * (num_fields - len(fields))
    return serialize(HeadersFrame(1, block, flags=["END_HEADERS", "END_STREAM"]))


AT_ONCE: dict[str, tuple[bytes, int]] = {
    "continuations of nothing": (
        with_block(b"", 9, b""),
        ErrorCodes.ENHANCE_YOUR_CALM,
    ),
    "a block of 80 kB": (
        with_block(bytes(16000), 4, bytes(16000)),
        ErrorCodes.ENHANCE_YOUR_CALM,
    ),
    "129 fields": (with_fields(129), ErrorCodes.ENHANCE_YOUR_CALM),
    "a block of nothing but updates of the table's size": (
        serialize(HeadersFrame(1, b"\x20" * 16000, flags=["END_HEADERS"])),
        ErrorCodes.PROTOCOL_ERROR,
    ),
    "33 settings": (
        serialize(SettingsFrame(0, settings={i: 1 for i in range(10, 43)})),
        ErrorCodes.ENHANCE_YOUR_CALM,
    ),
    "a frame of 16 MB, of which only the head has come": (
        b"\xff\xff\xff\0\0\0\0\0\1",
        ErrorCodes.FRAME_SIZE_ERROR,
    ),
    # RFC 9113, 8.4: a client cannot push.
    "a push promise": (
        serialize(
            headers(1, "/health"),
            PushPromiseFrame(1, promised_stream_id=2, flags=["END_HEADERS"]),
        ),
        ErrorCodes.PROTOCOL_ERROR,
    ),
    "101 streams": (
        serialize(*[headers(2 * i + 1, "/echo", method="POST") for i in range(101)]),
        ErrorCodes.PROTOCOL_ERROR,
    ),
}


@pytest.mark.parametrize("name", AT_ONCE)
async def test_a_peer_beyond_a_limit_gets_the_reason_and_is_closed(
    links: Links, name: str
) -> None:
    data, code = AT_ONCE[name]
    with trio.fail_after(20):
        async with links.open_link() as link:
            await link.receive(HELLO, data)
            assert link.end == code


async def test_limits_are_announced_and_requests_within_them_are_served(
    links: Links,
) -> None:
    with trio.fail_after(20):
        async with links.open_link() as link:
            await link.receive(HELLO, with_fields(128))
            await wait_all_tasks_blocked()
            frames = list(parse(link.take()))
    settings = next(f for f in frames if isinstance(f, SettingsFrame)).settings
    assert settings[SettingsFrame.MAX_CONCURRENT_STREAMS] == 100
    assert settings[SettingsFrame.MAX_HEADER_LIST_SIZE] == 2**16
    assert any(isinstance(f, DataFrame) and f.data == b"well" for f in frames)


async def test_requests_that_outlive_their_streams_are_bounded(links: Links) -> None:
    with trio.fail_after(60):
        async with links.open_link() as link:
            await link.receive(HELLO)
            for stream_id in range(1, 600, 2):
                await link.receive(
                    serialize(
                        headers(stream_id, "/shielded", "END_STREAM"),
                        RstStreamFrame(stream_id, error_code=8),
                    )
                )
                await wait_all_tasks_blocked()
            assert links.state.most_running == 200
            link.take()
            await link.receive(serialize(headers(601, "/health", "END_STREAM")))
            [refusal] = parse(link.take())
            links.state.gate.set()
            await wait_all_tasks_blocked()
            await link.receive(serialize(headers(603, "/health", "END_STREAM")))
            await wait_all_tasks_blocked()
            assert b"well" in link.take()
    assert isinstance(refusal, RstStreamFrame)
    assert refusal.error_code == ErrorCodes.REFUSED_STREAM


async def test_a_peer_may_send_many_frames_slowly(
    short_burst: None, links: Links, autojump_clock: MockClock
) -> None:
    async with links.open_link() as link:
        await link.receive(HELLO)
        for _ in range(3 * BURST):
            await link.receive(serialize(PingFrame(0, b"12345678")))
            await trio.sleep(1 / 30)
        assert not link.closed.is_set()


async def test_a_peer_may_open_its_windows_after_each_frame(
    links: Links, autojump_clock: MockClock
) -> None:
    async with links.open_link() as link:
        client = Client(link)
        await client.begin()
        await client.request(1, "/megabyte")
        num_frames = 0
        while num_frames <= MAX_COSTLY_FRAMES:
            assert not client.goaway
            frames = client.take_frames()
            num_frames += len(frames)
            for frame in frames:
                num_bytes = frame.flow_controlled_length
                client.connection.increment_flow_control_window(num_bytes)
                client.connection.increment_flow_control_window(num_bytes, 1)
            await client.flush()


async def test_requests_of_many_connections_begin_in_turns(
    links: Links, mock_clock: MockClock
) -> None:
    num_begun: list[int] = []

    class Watch(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            num_begun.append(links.state.num_begun)

    num_links = 2 * PER_TURN + 1
    async with AsyncExitStack() as stack:
        requests = []
        for _ in range(num_links):
            link = await stack.enter_async_context(links.open_link())
            client = Client(link)
            await client.begin()
            fields = list_fields("/echo", "POST")
            client.connection.send_headers(1, fields, end_stream=True)
            requests.append((link, client.connection.data_to_send()))
        trio.lowlevel.add_instrument(Watch())
        async with trio.open_nursery() as nursery:
            for link, data in requests:
                nursery.start_soon(link.receive, data)
        await wait_all_tasks_blocked()
    steps = [after - before for before, after in itertools.pairwise(num_begun)]
    assert sum(steps) == num_links
    assert max(steps) <= PER_TURN


async def test_a_connection_serves_any_number_of_requests(links: Links) -> None:
    links.config.keep_alive_max_requests = 3
    with trio.fail_after(20):
        async with links.open_link() as link:
            client = Client(link)
            await client.begin()
            for stream_id in range(1, 21, 2):
                await client.request(stream_id, "/health")
                assert client.bodies[stream_id] == b"well"
                assert client.has_ended(stream_id)


@pytest.mark.parametrize("bytes_per_second", [0, 200])
async def test_a_stream_whose_window_stays_shut_is_reset(
    links: Links, autojump_clock: MockClock, bytes_per_second: int
) -> None:
    async with links.open_link() as link:
        client = Client(link)
        await client.begin(window=0)
        began_at = trio.current_time()
        await client.request(1, "/megabyte")
        while not client.resets:
            await trio.sleep(1)
            if bytes_per_second:
                client.connection.increment_flow_control_window(bytes_per_second, 1)
            await client.flush()
        seconds = trio.current_time() - began_at
        assert client.resets == {1: ErrorCodes.ENHANCE_YOUR_CALM}
        # The first period covers only the little that was written then.
        assert 15 <= seconds <= 31
        assert links.state.num_running == 0
        # The connection goes on.
        client.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 99})
        await client.request(3, "/health")
        assert client.bodies[3] == b"well"


@pytest.mark.parametrize("bytes_per_second", [0, 200])
async def test_a_connection_whose_window_stays_shut_is_closed(
    links: Links, autojump_clock: MockClock, bytes_per_second: int
) -> None:
    async with links.open_link() as link:
        client = Client(link)
        await client.begin(window=2**20)
        for stream_id in (1, 3, 5):
            await client.request(stream_id, "/megabyte")
        began_at = trio.current_time()
        while not client.goaway:
            await trio.sleep(1)
            if bytes_per_second:
                client.connection.increment_flow_control_window(bytes_per_second)
            await client.flush()
        assert client.goaway.error_code == ErrorCodes.ENHANCE_YOUR_CALM
        assert client.goaway.additional_data == b"the connection's window is shut"
        assert 15 <= trio.current_time() - began_at <= 31
    assert links.state.num_running == 0


async def test_a_window_that_is_opened_by_single_bytes_is_a_flood(
    short_burst: None, links: Links, autojump_clock: MockClock
) -> None:
    async with links.open_link() as link:
        client = Client(link)
        await client.begin(window=0)
        await client.request(1, "/megabyte")
        while not client.goaway:
            await client.open_window(1, 1)
        assert client.goaway.error_code == ErrorCodes.ENHANCE_YOUR_CALM
        assert len(client.bodies[1]) < BURST


async def test_a_slow_reader_gets_all(links: Links, autojump_clock: MockClock) -> None:
    async with links.open_link() as link:
        client = Client(link)
        await client.begin()
        began_at = trio.current_time()
        await client.request(1, "/megabyte")
        await client.read_slowly(1, bytes_per_second=4096)
        assert client.bodies[1] == MEGABYTE
        # This is longer than many periods.
        assert trio.current_time() - began_at > 200


async def test_a_reader_that_is_too_slow_is_given_up(
    links: Links, autojump_clock: MockClock
) -> None:
    async with links.open_link() as link:
        client = Client(link)
        await client.begin(all_windows=2**24)
        await client.request(1, "/megabyte")
        await client.read_slowly(1, bytes_per_second=1024)
        assert client.resets == {1: ErrorCodes.ENHANCE_YOUR_CALM}


async def test_bytes_held_back_by_a_shut_window_are_bounded(links: Links) -> None:
    async with links.open_link() as link:
        client = Client(link)
        await client.begin(window=0)
        await client.request(1, "/megabyte")
        for _ in range(50):
            await client.open_window(1, 1)
        # hypercorn's high-water mark, and a chunk.
        assert len(link.protocol.stream_buffers[1]) < 2**15 + 200


async def test_streams_that_are_cancelled_are_not_held_against_their_connection(
    links: Links, autojump_clock: MockClock
) -> None:
    async with links.open_link() as link:
        client = Client(link)
        await client.begin(window=2**20)
        await client.request(1, "/megabyte")
        assert link.protocol.connection.outbound_flow_control_window == 0
        client.connection.reset_stream(1)
        await client.flush()
        await trio.sleep(60)
        await client.open_window(2**20)
        await client.request(3, "/health")
        assert client.bodies[3] == b"well"


async def test_a_stream_is_not_blamed_for_its_connections_window(
    links: Links, autojump_clock: MockClock
) -> None:
    async with links.open_link() as link:
        client = Client(link)
        await client.begin(window=2**15)
        await client.request(1, "/megabyte")
        await client.request(3, "/megabyte")
        for _ in range(10):
            # Both streams have open windows; only the connection's is shut.
            client.connection.increment_flow_control_window(2**15, 1)
            client.connection.increment_flow_control_window(2**15, 3)
            await client.flush()
            await trio.sleep(14)
            await client.open_window(2**15)
        assert not client.resets
        assert not client.goaway


async def test_an_answer_that_breaks_off_is_reset(links: Links) -> None:
    with trio.fail_after(20):
        async with links.open_link() as link:
            client = Client(link)
            await client.begin()
            await client.request(1, "/broken")
            assert client.resets == {1: ErrorCodes.INTERNAL_ERROR}
            await client.request(3, "/short")
            assert client.has_ended(3)


# Of tests with a socket.
serves_h2c = pytest.mark.server(http=HttpConfig(enable_h2c=True))

CHAT = {
    "model": "fake",
    "messages": [{"role": "user", "content": "a"}],
    "max_tokens": 100,
    "stream": True,
}


@serves_h2c
@pytest.mark.slow
async def test_a_drain_ends_before_its_time_though_a_window_stays_shut(
    server: FakeServer,
) -> None:
    install_guard(enable_h2c=True, write_timeout_seconds=0.2)
    async with await raw_http.connect(server.port) as stream:
        client = Http2Client(stream, window=0, opens_windows=False)
        body, path = json.dumps(CHAT).encode(), "/v1/chat/completions"
        await client.request(1, path, "POST", body, content_type="application/json")
        await client.wait_for(h2.events.ResponseReceived)
        server.state.lifecycle.begin_drain()
        end = await client.wait_for(h2.events.StreamReset)
        # The server closes its connections when the drain is over, which may take
        # 30 seconds.
        async for _ in stream:
            pass
    assert end.error_code == ErrorCodes.ENHANCE_YOUR_CALM


@serves_h2c
async def test_a_flooding_client_can_read_why_it_was_closed(server: FakeServer) -> None:
    async with await raw_http.connect(server.port) as stream:
        client = Http2Client(stream, opens_windows=False)
        for _ in range(10 * MAX_COSTLY_FRAMES):
            client.connection.ping(b"12345678")
        end = await client.wait_for(h2.events.ConnectionTerminated)
    assert end.error_code == ErrorCodes.ENHANCE_YOUR_CALM
    assert end.additional_data == b"too many frames"


@serves_h2c
async def test_a_flooding_client_that_never_reads_is_closed(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trioserve.http.connection.server.LINGER_SECONDS", 0.0)
    pings = serialize(PingFrame(0, b"1")) * 100
    async with await raw_http.connect(server.port) as stream:
        await stream.send_all(HELLO)
        with pytest.raises(trio.BrokenResourceError):
            while True:
                await stream.send_all(pings)


@serves_h2c
async def test_a_method_in_small_letters_is_another_method(server: FakeServer) -> None:
    async with httpx2.AsyncClient(
        base_url=server.url, http1=False, http2=True
    ) as client:
        request = client.build_request("DELETE", "/v1/requests")
        # The client would write it in capitals.
        request.method = "delete"
        response = await client.send(request)
    assert (response.http_version, response.status_code) == ("HTTP/2", 405)


@serves_h2c
@pytest.mark.slow
async def test_httpx_streams_a_chat_over_http2(server: FakeServer) -> None:
    async with httpx2.AsyncClient(
        base_url=server.url, http1=False, http2=True
    ) as client:
        async with client.stream("POST", "/v1/chat/completions", json=CHAT) as response:
            lines = [line async for line in response.aiter_lines() if line]
    assert response.http_version == "HTTP/2"
    assert lines.pop() == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert len(text) > 99
    assert (server.answer * 99).startswith(text)


CUT = serialize(
    SettingsFrame(0),
    headers(1, "/echo", method="POST"),
    *[DataFrame(1, bytes(range(200)) * 10)] * 40,
    *[PingFrame(0, b"12345678")] * 40,
)


def make_cutter() -> FrameCutter:
    return FrameCutter(FrameBudget(0.0), max_frame_size=2**14, max_block_size=2**16)


@pytest.mark.parametrize("read_size", [1, 7, 1000, 10**6])
def test_pieces_are_of_a_few_whole_frames_and_lose_nothing(read_size: int) -> None:
    cutter = make_cutter()
    data = PREFACE + CUT
    pieces = [
        piece
        for start in range(0, len(data), read_size)
        for piece in cutter.cut(data[start : start + read_size], 0.0)
    ]
    assert b"".join(pieces) == data
    if read_size > len(data):
        num_frames = [len(list(parse(piece.removeprefix(PREFACE)))) for piece in pieces]
        assert sum(num_frames) == 82
        assert max(num_frames) == FRAMES_PER_TURN


def test_a_budget_refills_up_to_its_limit() -> None:
    budget = FrameBudget(0.0)
    spend_all(budget, 0.0, MAX_COSTLY_FRAMES)
    spend_all(budget, 10.0, 330)
    budget.earn(5)
    spend_all(budget, 10.0, 5)
    spend_all(budget, 10_000.0, MAX_COSTLY_FRAMES)


def spend_all(budget: FrameBudget, now: float, num_frames: int) -> None:
    for _ in range(num_frames):
        budget.spend(now)
    with pytest.raises(DenialOfServiceError):
        budget.spend(now)
    budget.earn(1)


@pytest.mark.parametrize("padding", [{}, {"pad_length": 200, "flags": ["PADDED"]}])
def test_tiny_and_padded_frames_of_data_cost_as_much_as_four(
    padding: dict[str, object],
) -> None:
    frame = serialize(DataFrame(1, b" ", **padding))
    cutter = make_cutter()
    most = MAX_COSTLY_FRAMES // 4
    assert b"".join(cutter.cut(PREFACE + frame * most, 0.0)) == PREFACE + frame * most
    with pytest.raises(DenialOfServiceError):
        list(cutter.cut(frame, 0.0))


def test_a_long_frame_is_refused_by_its_head() -> None:
    cutter = make_cutter()
    data = PREFACE + b"\x00\x40\x00\0\0\0\0\0\1"
    assert b"".join(cutter.cut(data, 0.0)) == data
    cutter = make_cutter()
    with pytest.raises(FrameTooLargeError):
        list(cutter.cut(PREFACE + b"\x00\x40\x01\0\0\0\0\0\1", 0.0))


def test_a_window_must_let_the_waiting_bytes_or_32_kib_pass() -> None:
    stalled = StalledWindows(15.0)
    stalled.begin(1, 500, 0.0)
    stalled.begin(3, 10**6, 1.0)
    stalled.begin(CONNECTION, 10**6, 2.0)
    # Stream 1 has begun already.
    stalled.begin(1, 10**6, 3.0)
    assert stalled.next_deadline == 15.0
    stalled.take(1, 499)
    assert list(stalled.pop_expired(14.9)) == []
    stalled.take(1, 1)
    assert stalled.next_deadline == 16.0
    stalled.take(3, 2**15 - 1)
    assert list(stalled.pop_expired(16.0)) == [3]
    # The two streams have taken 33,267 bytes of the connection's share.
    assert stalled.next_deadline == float("inf")


def test_the_encoders_table_stays_small_even_if_the_peer_allows_more() -> None:
    encoder = BoundedEncoder()
    encoder.header_table_size = 2**32 - 1
    decoder = Decoder()
    for i in range(1000):
        fields = [(b"x-request-id", b"%d" % i)]
        assert decoder.decode(encoder.encode(fields), raw=True) == fields
    assert len(encoder.header_table.dynamic_entries) < 100
    encoder.header_table_size = 0
    assert encoder.header_table_size == 0


def test_a_table_may_be_resized_twice_in_a_block() -> None:
    encoder = Encoder()
    encoder.header_table_size = 0
    encoder.header_table_size = 4096
    block = encoder.encode([("x", "y")])
    assert list(BoundedDecoder().decode(block)) == [("x", "y")]
