"""Streams that outlive their connections, so that a client can take them up again.

The stream is a task in the server's nursery. It writes its events into a log, and a
connection sends them from there. Without a connection it goes on for some seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
import copy
from functools import partial
import math
import re
import secrets
from typing import Final

import trio

from ..config import HttpConfig, parse_bytes
from ..errors import StreamNotFound
from .background import BackgroundTasks
from .key_file import Key, name_key
from .live_requests import LiveRequest, LiveRequests
from .stream_log import StreamLog

HEADER: Final = "Last-Event-ID"

# The events of 1,400 tokens.
LOG_BYTES: Final = 2**18

_EVENT_ID: Final = re.compile(r"([0-9a-f]{32})-([0-9]{1,9})")


class ResumableStream:
    """One stream, and the connection that sends it at present.

    Args:
      live: the request that began it; only its key takes the stream up again.
      live_requests: show it while no connection does.
      seconds: the time that the stream lives without a connection.

    Attributes:
      scope: ends the stream.
    """

    def __init__(
        self, live: LiveRequest, live_requests: LiveRequests, seconds: float
    ) -> None:
        self.id = secrets.token_hex(16)
        # The request itself is shown, too, until it has ended.
        self.live = copy.copy(live)
        self.log = StreamLog(self.id, LOG_BYTES)
        self.scope = trio.CancelScope()
        self._live_requests = live_requests
        self._shown = ExitStack()
        self._seconds = seconds
        self._connection: trio.CancelScope | None = None

    @property
    def is_attached(self) -> bool:
        """Whether a connection sends it."""
        return self._connection is not None

    @contextmanager
    def attach(self, number: int) -> Iterator[None]:
        """Send the stream by a connection in the block.

        A connection that sent it before ends: the client has lost it.

        Args:
          number: the first event that is sent.
        """
        if self._connection is not None:
            self._connection.cancel()
        self._connection = own = trio.CancelScope()
        self._shown.close()
        self.scope.deadline = math.inf
        self.log.rewind(number)
        try:
            with own:
                yield
        finally:
            if self._connection is own:
                self._connection = None
                self._wait_for_client()

    def end(self) -> None:
        """Say that no events follow."""
        self.log.end()
        self._shown.close()

    def _wait_for_client(self) -> None:
        self.log.note_lost()
        self.scope.deadline = trio.current_time() + self._seconds
        if not self.log.has_ended:
            self._shown.enter_context(self._live_requests.hold(self.live))


class ResumableStreams:
    """The resumable streams of a server; there may be none.

    Attributes:
      tasks: run the streams.
      num_resumed: the times that a client took a stream up again.
    """

    def __init__(self, config: HttpConfig, live_requests: LiveRequests) -> None:
        self._live_requests = live_requests
        self._seconds = config.resume_seconds
        memory = parse_bytes("max_resume_memory", config.max_resume_memory)
        self._most = memory // LOG_BYTES if self._seconds else 0
        # Oldest first.
        self._streams: dict[str, ResumableStream] = {}
        # Those that were driven out end a little later.
        self.tasks = BackgroundTasks(2 * self._most)
        self.num_resumed = 0

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    def open(self, live: LiveRequest) -> ResumableStream | None:
        """Make room for the stream of a request; None if there is none.

        There is none if connections send all the others, or streams are not resumable.
        """
        if len(self._streams) >= self._most and not self._drop_one():
            return None
        stream = ResumableStream(live, self._live_requests, self._seconds)
        self._streams[stream.id] = stream
        return stream

    async def start(
        self,
        stream: ResumableStream,
        resources: AsyncExitStack,
        write: Callable[[], Awaitable[bytes]],
    ) -> None:
        """Begin a stream.

        Args:
          resources: are closed when the last event is in the log.
          write: writes the events into the log, and returns the last ones.
        """
        await self.tasks.start(partial(self._run, stream, resources, write))

    def find(self, event_id: str, key: Key | None) -> tuple[ResumableStream, int]:
        """Return the stream of an event, and the number of the event behind that one.

        Raises:
          StreamNotFound: it has ended for too long, is another key's, or has forgotten
            the events behind that one.
        """
        parts = _EVENT_ID.fullmatch(event_id)
        stream = None if parts is None else self._streams.get(parts[1])
        if (
            parts is None
            or stream is None
            or name_key(stream.live.key) != name_key(key)
        ):
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
                async with resources:
                    task_status.started()
                    await stream.log.append(await write())
                    stream.end()
                    # An engine that has failed ends the server when nobody needs it.
                    await stream.log.wait_sent()
                # The last events may have been lost with a connection.
                await trio.sleep_forever()
        finally:
            stream.end()
            self._streams.pop(stream.id, None)

    def _drop_one(self) -> bool:
        """End the oldest stream that no connection sends."""
        for stream in self._streams.values():
            if not stream.is_attached:
                stream.scope.cancel()
                del self._streams[stream.id]
                return True
        return False
