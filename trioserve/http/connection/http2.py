"""HTTP/2: hypercorn's use of h2, mended."""

from __future__ import annotations

from typing import TypeGuard

import h2.errors
import h2.events
from hypercorn.protocol.events import Event as StreamEvent, StreamClosed
from hypercorn.protocol.h2 import H2Protocol

from .closing import finish
from .http1 import is_path


class GuardedH2(H2Protocol):
    """HTTP/2 in which a stream's error is that stream's."""

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, StreamClosed):
            await finish(super().stream_send, event)
        else:
            await super().stream_send(event)

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.PriorityUpdated):
                # RFC 9113, 5.3.2 deprecates the tree, and hypercorn's overflows.
                continue
            if isinstance(event, h2.events.RequestReceived) and not _is_servable(event):
                self.connection.reset_stream(
                    event.stream_id, h2.errors.ErrorCodes.PROTOCOL_ERROR
                )
            elif self._is_late(event):
                self.connection.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id
                )
            else:
                await super()._handle_events([event])
        await self._flush()

    def _is_late(self, event: h2.events.Event) -> TypeGuard[h2.events.DataReceived]:
        """Whether these are bytes of a body that nobody reads any more."""
        return (
            isinstance(event, h2.events.DataReceived)
            and event.stream_id not in self.streams
        )


def _is_servable(event: h2.events.RequestReceived) -> bool:
    """Whether hypercorn can make a request of an HTTP/2 header block.

    CONNECT, with or without a websocket in it, has no place here; h2 itself checks
    the other methods' pseudo-headers, but not which bytes they are of.
    """
    fields = dict(event.headers)
    method, path = fields.get(b":method", b""), fields.get(b":path", b"")
    is_ascii = method.isascii() and path.isascii()
    return is_ascii and method != b"CONNECT" and is_path(path)
