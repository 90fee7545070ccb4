"""The client's end of HTTP/2: requests side by side on one connection."""

from __future__ import annotations

from contextlib import suppress

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
import h2.events
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
import trio

from .exchange import LOST, Request
from .plans import ClientPlan, Leave
from .replies import Part
from .server import SimulatedServer

# Longer than the server's limits for windows that are shut.
_STALL_SECONDS = 40.0


class Http2Connection:
    """Sends requests, and makes a new connection when the server has ended one.

    Args:
      plan: of the client.
    """

    def __init__(self, server: SimulatedServer, plan: ClientPlan) -> None:
        self._server = server
        self._plan = plan
        # The last one takes requests.
        self._links: list[_Link] = []

    def open(self, request: Request, part: Part) -> Http2Exchange:
        """Begin a request."""
        if not self._links or not self._links[-1].takes_requests:
            stream = self._server.connect(capacity=self._plan.capacity)
            self._links.append(_Link(stream, self._plan))
        return Http2Exchange(self._links[-1], request, part)

    def drop(self) -> None:
        for link in self._links:
            link.close()


class Http2Exchange:
    """One request, and its answer."""

    def __init__(self, link: _Link, request: Request, part: Part) -> None:
        self._link = link
        self._request = request
        self._part = part
        self._number = link.begin(request, part)

    async def run(self) -> None:
        """Send the request, and read its answer as far as it comes."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_body)
            nursery.start_soon(self._send)
            while not self._link.has_ended(self._number):
                await self._link.receive()
            nursery.cancel_scope.cancel()

    async def leave(self, how: Leave) -> None:
        """Give the request up; `run` has been cancelled."""
        if how == "stall":
            # Otherwise the next request would send this one.
            await self._link.flush()
            self._link.stall(self._number)
            await trio.sleep(_STALL_SECONDS)
        if how == "reset":
            self._link.reset()
        elif how == "goaway":
            await self._link.say_goodbye()
        else:
            await self._link.end(self._number)

    async def half_close(self) -> None:
        """HTTP/2 has no such thing: each request is closed by itself."""
        raise NotImplementedError

    async def _send_body(self) -> None:
        body, pieces = self._request.body, self._request.pieces
        size = -(-len(body) // pieces) or 1
        with suppress(ProtocolError):
            for start in range(0, len(body), size):
                if start:
                    await trio.sleep(0.01)
                rest = body[start + size :]
                self._link.write(self._number, body[start : start + size], not rest)

    async def _send(self) -> None:
        while True:
            await self._link.send()


class _Link:
    """One connection. Whoever waits for an answer reads for all, and writes for all."""

    def __init__(self, stream: trio.SocketStream, plan: ClientPlan) -> None:
        self._stream = stream
        self._plan = plan
        self._h2 = H2Connection(H2Configuration())
        self._h2.local_settings = Settings(
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: plan.window,
            }
        )
        self._h2.initiate_connection()
        self._parts: dict[int, Part] = {}
        self._stalled: set[int] = set()
        self._read = trio.lowlevel.ParkingLot()
        self._written = trio.lowlevel.ParkingLot()
        self._is_reading = False
        self._sending = trio.Lock()
        self._is_lost = False
        # Bytes that the socket has not taken yet.
        self._unsent = bytearray()

    @property
    def takes_requests(self) -> bool:
        if not self._is_lost and not self._parts:
            self._look()
        # A server that shuts down takes no more of them.
        limit = self._h2.remote_settings.max_concurrent_streams
        return not self._is_lost and limit > 0

    def begin(self, request: Request, part: Part) -> int:
        """Write the head of a request; returns the number of its stream."""
        number = self._h2.get_next_available_stream_id()
        self._parts[number] = part
        headers = [
            *((":method", request.method), (":path", request.path)),
            *((":scheme", "http"), (":authority", "x")),
            *((name.lower(), value) for name, value in request.headers),
        ]
        self._h2.send_headers(number, headers, end_stream=not request.body)
        return number

    def write(self, number: int, data: bytes, is_last: bool) -> None:
        """Write a part of a body. The server's window takes all bodies of a history.

        Raises:
          ProtocolError: the stream has ended.
        """
        self._h2.send_data(number, data, end_stream=is_last)
        self._written.unpark_all()

    def has_ended(self, number: int) -> bool:
        """Return whether no more of an answer will come."""
        return self._is_lost or number not in self._parts

    def stall(self, number: int) -> None:
        """Open the window of a stream no more."""
        self._stalled.add(number)

    async def end(self, number: int) -> None:
        """Reset a stream."""
        with suppress(ProtocolError):
            self._h2.reset_stream(number, ErrorCodes.CANCEL)
        self._parts.pop(number, None)
        await self.flush()

    async def say_goodbye(self) -> None:
        """Send GOAWAY, and close."""
        with suppress(ProtocolError):
            self._h2.close_connection()
        self._give_up()
        await self.flush()
        self._stream.socket.close()

    def reset(self) -> None:
        self._give_up()
        self._stream.socket.reset()  # type: ignore[attr-defined]

    def close(self) -> None:
        self._give_up()
        self._stream.socket.close()

    async def receive(self) -> None:
        """Wait for more bytes, or until another task has got some."""
        if self._is_reading:
            await self._read.park()
            return
        self._is_reading = True
        try:
            data = b""
            with suppress(*LOST):
                data = await self._stream.receive_some(self._plan.read_size)
            self._take(data)
            await trio.sleep(self._plan.read_pause)
        finally:
            self._is_reading = False
            self._read.unpark_all()

    async def send(self) -> None:
        """Send the written bytes, and wait until more were written."""
        await self.flush()
        await self._written.park()

    async def flush(self) -> None:
        """Send the written bytes."""
        async with self._sending:
            with suppress(OSError, *LOST):
                while self._has_unsent:
                    num_sent = await self._stream.socket.send(self._unsent)
                    del self._unsent[:num_sent]

    @property
    def _has_unsent(self) -> bool:
        self._unsent += self._h2.data_to_send()
        return bool(self._unsent)

    def _look(self) -> None:
        """Read what came while no request was on its way."""
        try:
            data = self._stream.socket.read_now(2**16)  # type: ignore[attr-defined]
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data) if data else []
        except ProtocolError:
            # A connection that was refused gets an answer of HTTP/1.
            data, events = b"", []
        for event in events:
            self._take_event(event)
        self._is_lost = self._is_lost or not data
        self._written.unpark_all()

    def _take_event(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ConnectionTerminated):
            # The library reads no frames behind it.
            self._is_lost = True
            return
        part = self._parts.get(getattr(event, "stream_id", None) or 0)
        if part is None:
            return
        if isinstance(event, h2.events.ResponseReceived):
            part.status = int(dict(event.headers)[b":status"])
            part.began_at = trio.current_time()
        elif isinstance(event, h2.events.DataReceived):
            part.body += event.data
            self._open_window(event)
        elif isinstance(event, h2.events.StreamEnded):
            part.is_whole = True
            del self._parts[event.stream_id]
        elif isinstance(event, h2.events.StreamReset):
            del self._parts[event.stream_id]

    def _open_window(self, event: h2.events.DataReceived) -> None:
        if event.stream_id not in self._stalled:
            with suppress(ProtocolError):
                self._h2.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id
                )

    def _give_up(self) -> None:
        """Say that the client has ended the requests that are on their way."""
        for part in self._parts.values():
            part.give_up(trio.current_time())
        self._is_lost = True
        self._read.unpark_all()
