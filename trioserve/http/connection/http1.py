"""Mends h11, and hypercorn's use of it, for HTTP/1.1."""

from __future__ import annotations

from dataclasses import replace
import re
from typing import Any, ClassVar, cast

import h11
from h11._readers import ChunkedReader
from h11._writers import ChunkedWriter, ContentLengthWriter
from hypercorn.events import RawData
from hypercorn.protocol.events import Event as StreamEvent, Response, StreamClosed
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import H11SendableEvent

from ...errors import MalformedRequest
from .chunked import JoiningReader, check_lines
from .exchange import (
    CHUNKS,
    ChunkSender,
    Writer,
    finish,
    mark_answered,
    put_at_once,
    refuse,
)

# The server stops reading when a peer has pipelined so many bytes.
MAX_PIPELINED_BYTES = 2**16

# The key of an ASGI extension: an async function that asks the client for the body. It
# sends `100 Continue` to a client that waits for it.
INVITE_BODY = "trioserve.invite_body"

# Nginx's and Apache's limit. Ours are short, but to decode a query takes a microsecond a byte.
MAX_TARGET_BYTES = 2**13

# A longer body is not copied to send it together with its head.
MAX_JOINED_BYTES = 2**16


# h11's words for a head that is too long.
_LONG_HEAD = "Receive buffer too long"

# h11 quotes the peer's bytes at the end of some messages. Other messages have a colon, too.
_QUOTE = re.compile(r""":? (?:bytearray\()?b['"]""")


class StrictConnection(h11.Connection):
    """h11, stricter about ambiguous requests and faster with small chunks.

    It ignores empty lines before a request. It never returns PAUSED, because hypercorn
    stops reading then, and would not notice that the peer leaves.

    Attributes:
      is_head: the method of the last request was HEAD, so its answer has no body.
      refusal: the error in the peer's last bytes; None if there is none.
    """

    def __init__(self, *, enable_h2c: bool, max_incomplete_event_size: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size)
        self._enable_h2c = enable_h2c
        self.is_head = False
        self.is_paused = False
        self.refusal: MalformedRequest | None = None

    def _get_io_object(self, role: Any, event: Any, io_dict: Any) -> Any:
        made = super()._get_io_object(role, event, io_dict)
        return JoiningReader() if type(made) is ChunkedReader else made

    # hypercorn would ask for the body before the app has looked at the request.
    they_are_waiting_for_100_continue = False

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self._read_event()
        except h11.RemoteProtocolError as error:
            reason = _QUOTE.split(str(error), maxsplit=1)[0]
            if reason == _LONG_HEAD:
                reason = (
                    f"its head is longer than {self._max_incomplete_event_size} bytes"
                )
            self.refusal = MalformedRequest(error.error_status_hint, reason)
            raise

    def _read_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state is h11.IDLE:
            # RFC 9112, 2.2: some clients send an extra line end after a body.
            data = self.trailing_data[0]
            num_skipped = len(data) - len(data.lstrip(b"\r\n"))
            self._receive_buffer.maybe_extract_at_most(num_skipped)
            check_lines(self._receive_buffer)
        # Bytes behind the last request are an error for h11, and hypercorn would answer 400
        # instead of that request's answer. So these bytes are not read.
        is_over = self.their_state is h11.MUST_CLOSE and bool(self.trailing_data[0])
        event = h11.PAUSED if is_over else super().next_event()
        if isinstance(event, h11.Request):
            self.is_head = event.method == b"HEAD"
            return _check_request(event, enable_h2c=self._enable_h2c)
        self.is_paused = event is h11.PAUSED
        return h11.NEED_DATA if self.is_paused else event


class GuardedH11(H11Protocol):
    """HTTP/1.1 that always notices when its peer leaves."""

    enable_h2c: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connection: StrictConnection = StrictConnection(
            enable_h2c=self.enable_h2c and not self.ssl,
            max_incomplete_event_size=self.config.h11_max_incomplete_size,
        )
        # The head of an answer that waits for its body.
        self._head = b""

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, StreamClosed):
            # The app ended without a body.
            await self._send_bytes(b"")
            mark_answered(self.stream)
            await finish(super().stream_send, event)
            return
        if isinstance(event, Response) and self.connection.their_state is h11.SEND_BODY:
            # The rest of the body will not be read, so no other request can follow.
            headers = [*event.headers, (b"connection", b"close")]
            event = replace(event, headers=headers)
        await super().stream_send(event)
        is_chunked = isinstance(self.connection._writer, ChunkedWriter)
        if isinstance(event, Response) and is_chunked and self.stream is not None:
            extensions: dict[str, Any] = self.stream.scope["extensions"]
            # hypercorn gives its protocols a method of the connection.
            writer = cast(Writer, cast(Any, self.send).__self__)
            extensions[CHUNKS] = ChunkSender(writer)

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        """Send an event, but the head of an answer of known length with its body.

        hypercorn writes the head, the body and the end of the body one by one.
        """
        try:
            data = self.connection.send(event)
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:
                raise
            return
        if isinstance(event, h11.Response) and isinstance(
            self.connection._writer, ContentLengthWriter
        ):
            self._head = data
        else:
            await self._send_bytes(data)

    async def _send_bytes(self, data: bytes) -> None:
        """Send a head that waits, and then `data`."""
        if len(data) <= MAX_JOINED_BYTES:
            data = self._head + data
        elif self._head:
            await self.send(RawData(self._head))
        self._head = b""
        if data:
            await self.send(RawData(data))

    async def _send_error_response(self, status_code: int) -> None:
        """Send the error with its reason; hypercorn would send a status without a body."""
        refusal = self.connection.refusal
        assert refusal is not None, "the connection has found an error"
        for event in refuse(refusal, self.config.response_headers("h11")):
            if not (self.connection.is_head and isinstance(event, h11.Data)):
                await self._send_h11_event(event)

    async def _create_stream(self, request: h11.Request) -> None:
        await super()._create_stream(request)
        stream = self.stream
        if isinstance(stream, HTTPStream):
            # RFC 9110, 9.1: methods are case-sensitive, and hypercorn writes capitals.
            stream.scope["method"] = request.method.decode()
            extensions: dict[str, Any] = stream.scope["extensions"]
            extensions[INVITE_BODY] = self._invite_body
            if hasattr(stream, "app_put"):
                # A request to another server name has no app.
                stream.app_put = put_at_once(stream.app_put)

    async def _invite_body(self) -> None:
        if self.connection.client_is_waiting_for_100_continue:
            await self._send_h11_event(
                h11.InformationalResponse(
                    status_code=100, headers=self.config.response_headers("h11")
                )
            )

    @property
    def has_pipelined(self) -> bool:
        return bool(self.connection.trailing_data[0])

    @property
    def is_far_ahead(self) -> bool:
        """True if the peer has pipelined too many bytes."""
        num_bytes = len(self.connection.trailing_data[0])
        return self.connection.is_paused and num_bytes > MAX_PIPELINED_BYTES

    @property
    def has_unread(self) -> bool:
        """True if the peer may have sent bytes that were not read yet."""
        is_amid = self.connection.their_state in (h11.SEND_BODY, h11.ERROR)
        return is_amid or self.connection.is_paused

    async def resume(self) -> None:
        """Handle the bytes that came before the last answer was complete."""
        await self._handle_events()


def _check_request(request: h11.Request, *, enable_h2c: bool) -> h11.Request:
    """Refuse a request that a proxy may have read differently, and ignore upgrades.

    Raises:
      h11.RemoteProtocolError: the request is refused. hypercorn answers with the
        status in the error, and closes.
    """
    names = dict(iter(request.headers))
    if request.http_version not in (b"1.0", b"1.1"):
        # h11 reads the preface of HTTP/2 as a request of version 2.0.
        if enable_h2c and (request.method, request.target) == (b"PRI", b"*"):
            return request
        raise h11.RemoteProtocolError(
            "only HTTP/1.0 and HTTP/1.1 are served", error_status_hint=505
        )
    # RFC 9112, 6.1: both may be requests that were smuggled past a proxy.
    if b"transfer-encoding" in names and (
        b"content-length" in names or request.http_version == b"1.0"
    ):
        raise h11.RemoteProtocolError(
            "the length of the body is ambiguous", error_status_hint=400
        )
    if len(request.target) > MAX_TARGET_BYTES:
        raise h11.RemoteProtocolError(
            f"its target is longer than {MAX_TARGET_BYTES} bytes", error_status_hint=414
        )
    if not request.target.startswith(b"/") or b"upgrade" in names:
        return _plain_request(request)
    return request


def _plain_request(request: h11.Request) -> h11.Request:
    """Return a request whose target is a path, and which has no upgrade."""
    # RFC 9112, 3.2: servers must accept the absolute form. The authority form belongs to
    # CONNECT, which is not for an origin server.
    authority = _AUTHORITY.match(request.target)
    headers = [field for field in request.headers if field[0] != b"upgrade"]
    target = request.target
    if authority is not None:
        target = target[authority.end() :]
        if not target.startswith(b"/"):
            target = b"/" + target
        # It counts in place of the header.
        headers = [field for field in headers if field[0] != b"host"]
        headers.append((b"host", authority[1]))
    if not is_path(target):
        raise h11.RemoteProtocolError("the target has no path", error_status_hint=400)
    return h11.Request(
        method=request.method,
        headers=headers,
        target=target,
        http_version=request.http_version,
    )


_AUTHORITY = re.compile(rb"https?://([^/?]*)", re.IGNORECASE)


def is_path(target: bytes) -> bool:
    return target == b"*" or target.startswith(b"/")
