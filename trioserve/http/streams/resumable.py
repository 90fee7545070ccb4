"""Streams that outlive their connections, so that a client can take them up again.

The stream is a task in the server's nursery. It writes its events into a log, and a
connection sends them from there. Without a connection it goes on for some seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
import copy
from functools import partial
import math
import re
import secrets
from typing import Final

import trio

from ...config import STREAM_LOG_BYTES, HttpConfig, parse_bytes
from ...errors import StreamNotFound
from ...types.admission import ClientHoldings
from ..keys.keys import Key, name_key
from ..live.live_requests import LiveRequest, LiveRequests
from ..record.stream_meter import StreamMeter
from .background import BackgroundTasks
from .event_log import StreamLog

HEADER: Final = "Last-Event-ID"

_EVENT_ID: Final = re.compile(r"([0-9a-f]{32})-([0-9]{1,9})")


class ResumableStream:
    """One stream, and the connection that sends it at present.

    Args:
      live: the request that began it; only its key takes the stream up again.
      live_requests: show it while no connection does.
      route: the path on which clients take it up again.
      meter: counts its tokens.
      comment: is sent where there is no event for long.
      seconds: the time that the stream lives without a connection.

    Attributes:
      scope: ends the stream.
      connection: the block in which a connection sends it; None without one.
      error: the type of the error with which it ended, if it did.
    """

    def __init__(
        self,
        live: LiveRequest,
        live_requests: LiveRequests,
        *,
        route: str,
        meter: StreamMeter,
        comment: bytes,
        seconds: float,
    ) -> None:
        self.id = secrets.token_hex(16)
        # The request itself is shown, too, until it has ended.
        self.live = copy.copy(live)
        self.route = route
        self.meter = meter
        self.comment = comment
        self.log = StreamLog(self.id, STREAM_LOG_BYTES)
        self.scope = trio.CancelScope()
        self.connection: trio.CancelScope | None = None
        self.error: str | None = None
        self._live_requests = live_requests
        self._shown = ExitStack()
        self._seconds = seconds

    def note_error(self, kind: str) -> None:
        """Note that the stream ends with an error of a type."""
        self.error = kind

    def claim(self, number: int) -> trio.CancelScope:
        """Take the stream for another connection; its sender runs in the scope.

        A connection that sent it before ends: the client has lost it.

        Args:
          number: the first event that will be sent.
        """
        if self.connection is not None:
            self.connection.cancel()
        self.connection = trio.CancelScope()
        self._shown.close()
        self.scope.deadline = math.inf
        self.log.rewind(number)
        return self.connection

    def release(self, connection: trio.CancelScope) -> None:
        """Say that a connection does not send the stream any more."""
        if self.connection is not connection:
            return
        self.connection = None
        self.scope.deadline = trio.current_time() + self._seconds
        self.log.note_lost()
        if not self.log.has_ended:
            self._shown.enter_context(self._live_requests.hold(self.live))

    def end(self) -> None:
        """Say that no events follow."""
        self.log.end()
        self._shown.close()


class ResumableStreams:
    """The resumable streams of a server; there may be none.

    Attributes:
      is_enabled: streams are resumable.
      tasks: run the streams.
      num_resumed: the times that a client took a stream up again.
    """

    def __init__(self, config: HttpConfig, live_requests: LiveRequests) -> None:
        self._live_requests = live_requests
        self._seconds = config.resume_seconds
        self.is_enabled = self._seconds > 0
        memory = parse_bytes("max_resume_memory", config.max_resume_memory)
        self._most = memory // STREAM_LOG_BYTES if self.is_enabled else 0
        # Oldest first.
        self._streams: dict[str, ResumableStream] = {}
        self._held = ClientHoldings()
        # Those that were driven out end a little later.
        self.tasks = BackgroundTasks(2 * self._most)
        self.num_resumed = 0

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    def open(
        self, live: LiveRequest, *, route: str, meter: StreamMeter, comment: bytes
    ) -> ResumableStream | None:
        """Make room for the stream of a request; None if there is none.

        There is none if connections send all the others. The caller claims and starts the
        stream at once.
        """
        # Streams that were driven out may not have ended yet.
        if not (self.tasks.has_room(live.client) and self._make_room(live.client)):
            return None
        stream = ResumableStream(
            live,
            self._live_requests,
            route=route,
            meter=meter,
            comment=comment,
            seconds=self._seconds,
        )
        self._streams[stream.id] = stream
        self._held.change(live.client, 1)
        return stream

    async def start(
        self,
        stream: ResumableStream,
        resources: AsyncExitStack,
        write: Callable[[], Awaitable[bytes]],
    ) -> None:
        """Begin a stream.

        Args:
          resources: the stream takes their content, and closes it when the last event
            is in the log.
          write: writes the events into the log, and returns the last ones.
        """
        try:
            await self.tasks.start(
                partial(self._run, stream, resources, write), stream.live.client
            )
        except BaseException:
            self._forget(stream)
            raise

    def find(
        self, event_id: str, key: Key | None, route: str
    ) -> tuple[ResumableStream, int]:
        """Return the stream of an event, and the number of the event behind that one.

        The caller claims the stream at once.

        Raises:
          StreamNotFound: it has ended for too long, is another key's or another path's, or
            has forgotten the events behind that one.
        """
        parts = _EVENT_ID.fullmatch(event_id)
        stream = None if parts is None else self._streams.get(parts[1])
        if parts is None or stream is None:
            raise StreamNotFound()
        if name_key(stream.live.key) != name_key(key) or stream.route != route:
            raise StreamNotFound()
        number = int(parts[2]) + 1
        stream.log.check(number)
        return stream, number

    async def _run(
        self,
        stream: ResumableStream,
        resources: AsyncExitStack,
        write: Callable[[], Awaitable[bytes]],
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        try:
            with stream.live.owner.hold(), stream.scope:
                async with resources.pop_all():
                    task_status.started()
                    await stream.log.write(await write())
                    stream.end()
                    # An engine that has failed ends the server when nobody needs it.
                    await stream.log.wait_sent()
                # The last events may have been lost with a connection.
                await trio.sleep_forever()
        finally:
            stream.end()
            self._forget(stream)

    def _forget(self, stream: ResumableStream) -> None:
        if self._streams.pop(stream.id, None) is not None:
            self._held.change(stream.live.client, -1)

    def _make_room(self, client: str) -> bool:
        """Make room for a stream of a client; False if there is none; see ClientHoldings."""
        if len(self._streams) < self._most:
            return True
        return (
            self._drop_one(self._held.find_largest(client))
            # Connections send all streams of that one.
            or self._held.count_free(self._most, client) > 0
            or self._drop_one(client)
        )

    def _drop_one(self, client: str) -> bool:
        """End the oldest stream of a client that no connection sends."""
        for stream in self._streams.values():
            if stream.connection is None and stream.live.client == client:
                stream.scope.cancel()
                self._forget(stream)
                return True
        return False
