"""The client's end of HTTP/1: one connection after the other, one request at a time."""

from __future__ import annotations

from contextlib import suppress

import h11
import trio

from .exchange import LOST, Request
from .plans import ClientPlan, Leave
from .replies import Part
from .server import SimulatedServer

# Longer than the server's write timeout.
_STALL_SECONDS = 40.0


class Http1Connection:
    """Sends requests, and keeps the connection between them if both ends can.

    Args:
      plan: of the client.
    """

    def __init__(self, server: SimulatedServer, plan: ClientPlan) -> None:
        self._server = server
        self._plan = plan
        self._stream: trio.SocketStream | None = None
        self._parser = h11.Connection(h11.CLIENT)

    def open(self, request: Request, part: Part) -> Http1Exchange:
        """Begin a request."""
        if self._stream is not None and _has_ended(self._stream):
            # The server closes connections that are idle for too long.
            self.drop()
        if self._stream is None:
            self._parser = h11.Connection(h11.CLIENT)
            self._stream = self._server.connect(capacity=self._plan.capacity)
        return Http1Exchange(
            self, self._stream, self._parser, self._plan, request, part
        )

    def finish(self) -> None:
        """Say that a request has ended."""
        states = self._parser.our_state, self._parser.their_state
        if states == (h11.DONE, h11.DONE):
            self._parser.start_next_cycle()
        else:
            self.drop()

    def drop(self) -> None:
        if self._stream is not None:
            self._stream.socket.close()
            self._stream = None


class Http1Exchange:
    """One request, and its answer."""

    def __init__(
        self,
        connection: Http1Connection,
        stream: trio.SocketStream,
        parser: h11.Connection,
        plan: ClientPlan,
        request: Request,
        part: Part,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._parser = parser
        self._plan = plan
        self._request = request
        self._part = part

    async def run(self) -> None:
        """Send the request, and read its answer as far as it comes."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send)
            with suppress(*LOST):
                await self._read()
            nursery.cancel_scope.cancel()
        if self._part.is_given_up:
            self._connection.drop()
        else:
            self._connection.finish()

    async def leave(self, how: Leave) -> None:
        """Give the request up; `run` has been cancelled."""
        if how == "stall":
            await trio.sleep(_STALL_SECONDS)
        elif how == "reset":
            self._stream.socket.reset()  # type: ignore[attr-defined]
        self._connection.drop()

    async def half_close(self) -> None:
        """Say that nothing more will be sent."""
        with suppress(*LOST, trio.BusyResourceError):
            await self._stream.send_eof()

    async def _send(self) -> None:
        packet = self._write()
        size = -(-len(packet) // self._request.pieces)
        with suppress(*LOST):
            for start in range(0, len(packet), size):
                if start:
                    await trio.sleep(0.01)
                await self._stream.send_all(packet[start : start + size])

    async def _read(self) -> None:
        while True:
            event = self._parser.next_event()
            if event is h11.NEED_DATA:
                data = await self._stream.receive_some(self._plan.read_size)
                if not data:
                    return
                self._parser.receive_data(data)
                await trio.sleep(self._plan.read_pause)
            elif isinstance(event, h11.Response):
                self._part.status = event.status_code
                self._part.began_at = trio.current_time()
            elif isinstance(event, h11.Data):
                self._part.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                self._part.is_whole = True
                return

    def _write(self) -> bytes:
        request = self._request
        headers = [
            ("Host", "x"),
            ("Content-Length", str(len(request.body))),
            *request.headers,
        ]
        events = (
            h11.Request(method=request.method, target=request.path, headers=headers),
            h11.Data(data=request.body),
            h11.EndOfMessage(),
        )
        return b"".join(self._parser.send(event) or b"" for event in events)


def _has_ended(stream: trio.SocketStream) -> bool:
    try:
        return not stream.socket.read_now(1)  # type: ignore[attr-defined]
    except BlockingIOError:
        return False
    except OSError:
        return True
