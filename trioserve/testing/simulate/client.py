"""A client of the simulated server: it sends one request and notes all that comes back."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import h11
import trio

from .history import ClientPlan, RequestPlan
from .server import SimulatedServer

# How a write or a read ends when the server has closed the connection.
_LOST = (trio.BrokenResourceError, trio.ClosedResourceError)


@dataclass(kw_only=True)
class Reply:
    """What a client has got for a request.

    Attributes:
      sent_at: when the first byte was sent, in seconds of trio.current_time().
      ended_at: when the last byte came, or the client left.
      status: None before the head of the answer.
      is_whole: the end of the answer has come.
      has_left: the client has left on its own.
    """

    plan: RequestPlan
    client: ClientPlan
    sent_at: float
    ended_at: float = 0.0
    status: int | None = None
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False
    has_left: bool = False


class Client:
    """Sends the requests of a plan one after the other, and notes the replies.

    A request whose client leaves, and a request behind an answer that closes, begin a new
    connection.
    """

    def __init__(self, server: SimulatedServer, plan: ClientPlan) -> None:
        self._server = server
        self._plan = plan
        self._stream: trio.SocketStream | None = None
        self._parser = h11.Connection(h11.CLIENT)
        self.replies: list[Reply] = []

    async def run(self) -> None:
        await trio.sleep_until(self._plan.starts_at)
        for request in self._plan.requests:
            await trio.sleep(request.waits)
            await self._ask(request)
        self._drop()

    async def _ask(self, request: RequestPlan) -> None:
        stream = self._connect()
        reply = Reply(plan=request, client=self._plan, sent_at=trio.current_time())
        self.replies.append(reply)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send, stream, request)
            if request.leaves is not None:
                nursery.start_soon(self._leave, stream, reply, nursery.cancel_scope)
            with suppress(*_LOST):
                await self._read(stream, reply)
            nursery.cancel_scope.cancel()
        reply.ended_at = trio.current_time()
        self._finish(reply)

    async def _send(self, stream: trio.SocketStream, request: RequestPlan) -> None:
        packet = self._write_request(request)
        size = -(-len(packet) // request.pieces)
        with suppress(*_LOST):
            for start in range(0, len(packet), size):
                if start:
                    await trio.sleep(0.01)
                await stream.send_all(packet[start : start + size])

    async def _read(self, stream: trio.SocketStream, reply: Reply) -> None:
        while True:
            event = self._parser.next_event()
            if event is h11.NEED_DATA:
                data = await stream.receive_some(self._plan.read_size)
                if not data:
                    return
                self._parser.receive_data(data)
                await trio.sleep(self._plan.read_pause)
            elif isinstance(event, h11.Response):
                reply.status = event.status_code
            elif isinstance(event, h11.Data):
                reply.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                reply.is_whole = True
                return

    async def _leave(
        self, stream: trio.SocketStream, reply: Reply, asking: trio.CancelScope
    ) -> None:
        await trio.sleep(reply.plan.leaves_after)
        reply.has_left = True
        if reply.plan.leaves == "half_close":
            with suppress(*_LOST, trio.BusyResourceError):
                await stream.send_eof()
            return
        if reply.plan.leaves == "stall":
            asking.cancel()
            # Longer than the server's write timeout.
            with trio.CancelScope(shield=True):
                await trio.sleep(40.0)
        elif reply.plan.leaves == "reset":
            stream.socket.reset()  # type: ignore[attr-defined]
        stream.socket.close()
        asking.cancel()

    def _connect(self) -> trio.SocketStream:
        if self._stream is not None and _has_ended(self._stream):
            # The server closes connections that are idle for too long.
            self._drop()
        if self._stream is None:
            self._parser = h11.Connection(h11.CLIENT)
            self._stream = self._server.connect(capacity=self._plan.capacity)
        return self._stream

    def _finish(self, reply: Reply) -> None:
        """Keep the connection for the next request, if both ends can."""
        states = self._parser.our_state, self._parser.their_state
        if reply.has_left or states != (h11.DONE, h11.DONE):
            self._drop()
        else:
            self._parser.start_next_cycle()

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.socket.close()
            self._stream = None

    def _write_request(self, request: RequestPlan) -> bytes:
        body = request.write_body()
        headers = {
            "Host": "x",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "X-Request-Id": request.id,
        }
        if request.timeout is not None:
            headers["X-Request-Timeout"] = f"{request.timeout:.6f}"
        events = (
            h11.Request(
                method="POST", target=request.path, headers=list(headers.items())
            ),
            h11.Data(data=body),
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


async def cancel_requests(server: SimulatedServer, request_id: str | None) -> bytes:
    """Send a DELETE of one request, or of all; returns the answer."""
    path = "/v1/requests" + ("" if request_id is None else f"/{request_id}")
    stream = server.connect()
    answer = b""
    with suppress(*_LOST):
        await stream.send_all(
            f"DELETE {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        )
        while data := await stream.receive_some():
            answer += data
    stream.socket.close()
    return answer
