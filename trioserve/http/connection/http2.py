"""Mends hypercorn's use of h2 for HTTP/2."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar, TypeGuard

from h2.errors import ErrorCodes
import h2.events
from h2.exceptions import DenialOfServiceError, ProtocolError
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Event as StreamEvent, StreamClosed
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.http_stream import HTTPStream
import trio

from .beginnings import wait_turn
from .exchange import finish, mark_answered
from .fields import BoundedDecoder, BoundedEncoder
from .frames import (
    FRAMES_PER_DATA_SENT,
    FRAMES_PER_TURN,
    SHORT_FRAME,
    FrameBudget,
    FrameCutter,
)
from .http1 import MAX_TARGET_BYTES, is_path
from .windows import CONNECTION, GuardedBuffer, WindowWatch


class GuardedH2(H2Protocol):
    """HTTP/2 whose errors end one stream at most, and whose peers have limits."""

    window_timeout_seconds: ClassVar[float] = 15.0
    stream_buffers: dict[int, GuardedBuffer]  # type: ignore[assignment]

    def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(self._run_app, *args, **kwargs)  # type: ignore[arg-type]
        self._app = app
        self._num_running = 0
        self._num_sent = 0
        self._is_refused = False
        self._budget = FrameBudget(trio.current_time())
        # An encoded header block is not longer than the decoded list.
        max_fields_size = self.config.h2_max_header_list_size
        self._frames = FrameCutter(
            self._budget,
            max_frame_size=self.connection.max_inbound_frame_size,
            max_block_size=max_fields_size,
        )
        self._watch = WindowWatch(self.window_timeout_seconds, self._give_up)
        self.connection.decoder = BoundedDecoder(max_fields_size)
        self.connection.encoder = BoundedEncoder()

    async def initiate(self, *args: Any, **kwargs: Any) -> None:
        await super().initiate(*args, **kwargs)
        self.task_group.spawn(self._watch.run)
        # hypercorn takes the preface for a request, and does not notice afterwards that
        # the connection is idle.
        await self._tell_idle()

    @property
    def has_unread(self) -> bool:
        """True if the peer may have sent bytes that were not read yet."""
        return self._is_refused

    async def handle(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._receive(event.data)
            return
        if isinstance(event, Closed):
            self._watch.stop()
        await super().handle(event)

    async def _receive(self, data: bytes) -> None:
        """Handle the frames in `data`, and let other tasks run between them."""
        try:
            pieces = self._frames.cut(data, trio.current_time())
            for index, piece in enumerate(pieces):
                if index > 0:
                    await trio.lowlevel.checkpoint()
                await self._handle_events(self.connection.receive_data(piece))
        except ProtocolError as error:
            await self._refuse(error)

    async def _refuse(self, error: ProtocolError) -> None:
        """Close the connection with the reason."""
        if self._is_refused:
            return
        self._is_refused = True
        # h2 may have queued a GOAWAY itself, behind answers that the peer will not
        # read.
        self.connection.clear_outbound_data_buffer()
        reason = str(error) if isinstance(error, DenialOfServiceError) else ""
        self.connection.close_connection(error.error_code, reason.encode())
        await self._flush()
        await self.send(Closed())

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            await self._handle_event(event)
        await self._flush()

    async def _handle_event(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.PriorityUpdated):
            # RFC 9113, 5.3.2 deprecates priorities, and hypercorn's tree overflows.
            return
        if isinstance(event, h2.events.RequestReceived):
            await self._begin(event)
        elif self._is_late(event):
            self.connection.acknowledge_received_data(
                event.flow_controlled_length, event.stream_id
            )
        elif isinstance(event, h2.events.StreamReset):
            if not event.remote_reset:
                # The peer made h2 reset a stream, which costs as much as its own resets.
                self._budget.spend(trio.current_time())
            await self._drop_stream(event.stream_id)
        else:
            await super()._handle_events([event])

    async def _begin(self, event: h2.events.RequestReceived) -> None:
        """Begin a request, or refuse its stream."""
        if not _is_servable(event):
            await self._reset(event.stream_id, ErrorCodes.PROTOCOL_ERROR)
        elif self._is_crowded:
            # RFC 9113, 8.7: with this code, the client may send the request again.
            await self._reset(event.stream_id, ErrorCodes.REFUSED_STREAM)
        else:
            self._budget.earn(1)
            # After a thousand requests hypercorn sends GOAWAY, and then h2 cannot answer
            # the running requests.
            self.keep_alive_requests = 0
            await super()._handle_events([event])

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        method = dict(request.headers)[b":method"]
        await wait_turn(method)
        await super()._create_stream(request)
        stream = self.streams[request.stream_id]
        if isinstance(stream, HTTPStream):
            # As in HTTP/1.
            stream.scope["method"] = method.decode()

    @property
    def _is_crowded(self) -> bool:
        """True if too many cancelled requests are still running.

        h2 limits open streams, but a request may live longer than its stream, because it
        needs time to end. The limit is doubled, so a peer may replace all its streams at
        once.
        """
        limit = 2 * self.config.h2_max_concurrent_streams
        return max(self._num_running, len(self.stream_buffers)) >= limit

    async def _run_app(self, *args: Any) -> None:
        self._num_running += 1
        try:
            await self._app(*args)
        finally:
            self._num_running -= 1

    def _is_late(self, event: h2.events.Event) -> TypeGuard[h2.events.DataReceived]:
        """Return whether these are bytes of a body whose request has ended."""
        return (
            isinstance(event, h2.events.DataReceived)
            and event.stream_id not in self.streams
        )

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, StreamClosed):
            await finish(self._end_stream, event)
        else:
            await super().stream_send(event)

    async def _end_stream(self, event: StreamEvent) -> None:
        buffer = self.stream_buffers.get(event.stream_id)
        if buffer is not None and not buffer.is_finished:
            # The app ended too early. Without a reset, the client would wait for ever.
            await self._reset(event.stream_id, ErrorCodes.INTERNAL_ERROR)
        else:
            mark_answered(self.streams.get(event.stream_id))
        await super().stream_send(event)

    async def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        """End one stream, from this side."""
        # The peer may have closed the stream already.
        with suppress(ProtocolError):
            self.connection.reset_stream(stream_id, code)
        await self._drop_stream(stream_id)
        await self._flush()

    async def _drop_stream(self, stream_id: int) -> None:
        await self._drop_buffer(stream_id)
        await self._close_stream(stream_id)
        # hypercorn reports this only for streams that have been answered.
        await self._tell_idle()

    async def _tell_idle(self) -> None:
        """Start the keep-alive timeout if the connection has no stream."""
        if not self.closed:
            await self.send(Updated(idle=self.idle))

    async def _drop_buffer(self, stream_id: int) -> None:
        # hypercorn would keep the buffer until the window opens.
        buffer = self.stream_buffers.pop(stream_id, None)
        if buffer is not None:
            self.priority.remove_stream(stream_id)
            self._watch.take(stream_id, len(buffer))
            await buffer.close()

    async def _send_data(self, stream_id: int) -> None:
        """Send the next frame of a stream, if its windows and its app allow."""
        buffer = self.stream_buffers[stream_id]
        try:
            window = self.connection.local_flow_control_window(stream_id)
            size = min(window, self.connection.max_outbound_frame_size)
            data = await buffer.pop(max(0, size))
            if data:
                await self._send_frame(stream_id, data, is_all=not buffer)
            else:
                self._block(stream_id)
            if buffer.complete:
                self.connection.end_stream(stream_id)
                await self._flush()
                await self._drop_buffer(stream_id)
        except ProtocolError:
            # The stream or the connection is closed.
            await self._drop_buffer(stream_id)

    async def _send_frame(self, stream_id: int, data: bytes, *, is_all: bool) -> None:
        self.connection.send_data(stream_id, data)
        self._watch.take(stream_id, len(data))
        # A peer that opens its window byte by byte gets no credit.
        if is_all or len(data) >= SHORT_FRAME:
            self._budget.earn(FRAMES_PER_DATA_SENT)
        await self._flush()
        self._num_sent += 1
        if self._num_sent % FRAMES_PER_TURN == 0:
            await trio.lowlevel.checkpoint()

    def _block(self, stream_id: int) -> None:
        """Serve other streams until the window of this one opens, or its app writes."""
        self.priority.block(stream_id)
        num_waiting = len(self.stream_buffers[stream_id])
        if num_waiting and self._is_shut:
            total = sum(len(buffer) for buffer in self.stream_buffers.values())
            self._watch.begin(CONNECTION, total)
        elif num_waiting:
            self._watch.begin(stream_id, num_waiting)

    @property
    def _is_shut(self) -> bool:
        """True if the window of the connection is shut."""
        return self.connection.outbound_flow_control_window <= 0

    async def _give_up(self, stream_id: int) -> None:
        if stream_id == CONNECTION:
            await self._refuse(DenialOfServiceError("the connection's window is shut"))
        elif self._is_shut:
            # The stream's own window may be open, so the stream gets another period.
            self._watch.begin(stream_id, len(self.stream_buffers[stream_id]))
        else:
            await self._reset(stream_id, ErrorCodes.ENHANCE_YOUR_CALM)


def _is_servable(event: h2.events.RequestReceived) -> bool:
    """Return whether hypercorn can make a request of an HTTP/2 header block.

    CONNECT is refused, with or without a websocket. h2 checks the pseudo-headers of the
    other methods, but not their bytes.
    """
    fields = dict(event.headers)
    method, path = fields.get(b":method", b""), fields.get(b":path", b"")
    if len(path) > MAX_TARGET_BYTES or not (method.isascii() and path.isascii()):
        return False
    return method != b"CONNECT" and is_path(path)
