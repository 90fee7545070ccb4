"""A client of HTTP/2 that sees what happens to each stream."""

from __future__ import annotations

from typing import Any, TypeVar

import h2.config
import h2.connection
import h2.events
from h2.settings import SettingCodes
import trio

EventT = TypeVar("EventT", bound=h2.events.Event)


def list_fields(path: bytes | str, method: str = "GET", **fields: str) -> list[Any]:
    """Return the fields of a request, with _ for - in names."""
    return [
        (":method", method),
        (":path", path),
        (":scheme", "http"),
        (":authority", "h"),
        *((name.replace("_", "-"), value) for name, value in fields.items()),
    ]


class Http2Client:
    """Just enough HTTP/2 for one connection.

    Args:
      window: the first window of each stream, in bytes.
      opens_windows: whether bytes that have come open the windows again.

    Attributes:
      bodies: the bytes of each stream so far.
      events: all that has come besides.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        window: int = 65_535,
        opens_windows: bool = True,
    ) -> None:
        self._stream = stream
        self._opens_windows = opens_windows
        settings = h2.config.H2Configuration(validate_outbound_headers=False)
        self.connection = h2.connection.H2Connection(settings)
        self.connection.initiate_connection()
        if window != 65_535:
            self.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self._ends: dict[int, type[h2.events.Event]] = {}
        self.events: list[h2.events.Event] = []
        self.bodies: dict[int, bytes] = {}

    async def request(
        self,
        stream_id: int,
        path: bytes | str,
        method: str = "GET",
        body: bytes | None = None,
        **fields: str,
    ) -> None:
        """Begin a request; it ends if it has a body and is not a GET."""
        has_ended = method == "GET"
        headers = list_fields(path, method, **fields)
        self.connection.send_headers(stream_id, headers, end_stream=has_ended)
        if body is not None:
            self.connection.send_data(stream_id, body, end_stream=True)
        await self.flush()

    async def flush(self) -> None:
        await self._stream.send_all(self.connection.data_to_send())

    async def wait_body(self, stream_id: int, body: bytes) -> None:
        while body not in self.bodies.get(stream_id, b""):
            await self.receive()

    def has_ended(self, stream_id: int) -> bool:
        return stream_id in self._ends

    async def wait_end(self, stream_id: int) -> type[h2.events.Event]:
        while not self.has_ended(stream_id):
            await self.receive()
        return self._ends[stream_id]

    async def wait_for(self, event_type: type[EventT]) -> EventT:
        """Return the first event of a type."""
        while True:
            for event in self.events:
                if isinstance(event, event_type):
                    return event
            await self.receive()

    async def receive(self) -> None:
        await self.flush()
        data = await self._stream.receive_some()
        assert data, "the server closed the connection"
        for event in self.connection.receive_data(data):
            self.events.append(event)
            if isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
                self._ends[event.stream_id] = type(event)
            elif isinstance(event, h2.events.DataReceived):
                body = self.bodies.get(event.stream_id, b"")
                self.bodies[event.stream_id] = body + event.data
                if self._opens_windows:
                    self.connection.acknowledge_received_data(
                        event.flow_controlled_length, event.stream_id
                    )
        await self.flush()
