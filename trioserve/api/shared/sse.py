"""Streams an answer as server-sent events, or as lines of JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from functools import partial
import logging
from typing import Protocol

from quart import Response
import trio

from ...errors import InternalError, TrioserveError
from ...http.answer import EventConnection
from ...http.record.stream_meter import StreamMeter
from ...http.scope import ScopedRequest
from ...http.streams.keepalive import COMMENT
from ...http.streams.resumable import ResumableStream, ResumableStreams
from ...http.wire.respond import EVENTS, run_writing
from ...render import RendererWorkers
from ...types.output import TextDelta
from .logprobs import count_entries

SendPart = Callable[[bytes], Awaitable[None]]
# Notes the type of a stream's error.
NoteError = Callable[[str], None]
# Writes the events of a stream, and returns the last events.
Write = Callable[[NoteError, SendPart, EventConnection | None], Awaitable[bytes]]

logger = logging.getLogger(__name__)

# A turn of the event loop with so many events takes a millisecond or two.
_MAX_TOKENS_AT_ONCE = 64


class EventWriter(Protocol):
    """Turns the deltas of an endpoint into events."""

    def write(self, delta: TextDelta) -> bytes:
        """Return the events of a delta; empty if the delta has nothing to report."""

    def end(self) -> bytes:
        """Return the events behind the last delta, which end the stream."""

    def fail(self, error: TrioserveError) -> bytes:
        """Return the events that end the stream with an error."""


def respond_events(
    request: ScopedRequest,
    meter: StreamMeter,
    writer: EventWriter,
    workers: RendererWorkers,
    *,
    opening: bytes = b"",
    before_end: Callable[[], None] | None = None,
    comment: bytes = COMMENT,
    content_type: str = EVENTS,
) -> Response:
    """Answer with a stream of deltas.

    Args:
      opening: the events before the first delta, which do not wait for it.
      before_end: called when the last events have been written, before they are sent.
      comment: sent when there is no event for long; clients ignore it.
      content_type: of the stream. Server-sent events alone can be taken up again, because
        they have ids.
    """

    write = partial(
        _write_events,
        *(request.id, meter, writer, workers, opening, before_end),
    )
    streams = request.resumable if content_type == EVENTS else None
    return respond_stream(
        partial(_send_events, request, meter, comment, streams, write), content_type
    )


def respond_stream(
    send: Callable[[], Awaitable[bytes]], content_type: str = EVENTS
) -> Response:
    """Answer with a stream, which may last for hours.

    Args:
      send: sends the stream by `request.answer`, and returns its last events.
    """
    response = Response(
        _generate(send),
        headers={
            "Cache-Control": "no-cache",
            # Without this, nginx collects tokens before it passes them on.
            "X-Accel-Buffering": "no",
        },
        content_type=f"{content_type}; charset=utf-8",
    )
    response.timeout = None
    return response


# The one async generator of the project: quart takes a streamed body in no other form.
# It opens no resource, because quart does not always start it (http/scope.py).
async def _generate(  # noqa: ASYNC900
    send: Callable[[], Awaitable[bytes]],
) -> AsyncIterator[bytes]:
    yield await send()


async def send_log(
    request: ScopedRequest,
    events: EventConnection,
    stream: ResumableStream,
    connection: trio.CancelScope,
    number: int = 0,
) -> bytes:
    """Send the events of a stream, beginning with a number, as they come.

    Args:
      connection: what `claim` has returned.
    """
    try:
        with connection:
            while found := await stream.log.read(number):
                await events.send(b"".join(found))
                number += len(found)
                stream.log.note_sent(number)
            if stream.error is not None:
                request.answer.note_error(stream.error)
        if connection.cancelled_caught:
            # Another connection sends the rest. An end in order would look like a whole answer.
            request.time_limit.whole.cancel()
            await trio.lowlevel.checkpoint()
    finally:
        stream.release(connection)
    return b""


async def _send_events(
    request: ScopedRequest,
    meter: StreamMeter,
    comment: bytes,
    streams: ResumableStreams | None,
    write: Write,
) -> bytes:
    """Send the events of a stream, and return the last of them."""
    async with request.open_events(comment) as events:
        stream = None
        if streams is not None:
            assert request.url_rule is not None, "the path has a route"
            route = request.url_rule.rule
            stream = streams.open(
                request.live, route=route, meter=meter, comment=comment
            )
        if streams is None or stream is None:
            sampling = request.sampling
            assert sampling is not None, "the stream has begun"
            # Their events may be long, and a worker writes them.
            has_logprobs = (
                sampling.logprobs is not None or sampling.prompt_logprobs is not None
            )
            return await write(
                request.answer.note_error,
                events.send,
                None if has_logprobs else events,
            )
        connection = stream.claim(0)
        request.resources.callback(stream.release, connection)
        request.is_resumable = True
        await streams.start(
            stream,
            request.generation,
            partial(write, stream.note_error, stream.log.write, None),
        )
        return await send_log(request, events, stream, connection)


async def _write_events(
    request_id: object,
    meter: StreamMeter,
    writer: EventWriter,
    workers: RendererWorkers,
    opening: bytes,
    before_end: Callable[[], None] | None,
    note_error: NoteError,
    send: SendPart,
    connection: EventConnection | None,
) -> bytes:
    """Write the events of a stream, and return the last of them."""
    sender = _EventSender(send, connection, meter, writer, workers)
    try:
        if opening:
            await sender.send(opening)
        await sender.send_all()
        last = await sender.write_end()
        if before_end is not None:
            before_end()
        return last
    except TrioserveError as error:
        note_error(error.code)
        return sender.take_unsent() + writer.fail(error)
    except Exception:
        logger.exception("the stream of request %s failed", request_id)
        note_error(InternalError.code)
        return sender.take_unsent() + writer.fail(InternalError())


class _EventSender:
    """Writes the events of all deltas that are there at once in one piece.

    They belong to a request's other choices, or a fast device made them in the
    meantime. No event waits for the next step.

    Args:
      send: takes the events, and waits until there is room for more.
      connection: takes events without waiting, when it is free. None for a stream that has a
        log, or deltas whose events a renderer worker writes.
    """

    def __init__(
        self,
        send: SendPart,
        connection: EventConnection | None,
        meter: StreamMeter,
        writer: EventWriter,
        workers: RendererWorkers,
    ) -> None:
        self.send = send
        self._connection = connection
        self._meter = meter
        self._writer = writer
        self._workers = workers
        self._unsent: list[bytes] = []
        # The log probabilities of all deltas, and more; see count_entries.
        self.num_entries = 0

    async def send_all(self) -> None:
        """Send the events of the stream, except those behind the last delta."""
        meter = self._meter
        with ExitStack() as exits:
            if self._connection is not None:
                exits.enter_context(meter.stream.taking(self._take_now))
            async for delta in meter.stream:
                await self._write(delta)
                num_tokens = len(delta.token_ids)
                while meter.stream.has_pending and num_tokens < _MAX_TOKENS_AT_ONCE:
                    delta = meter.stream.take_nowait()
                    await self._write(delta)
                    num_tokens += len(delta.token_ids)
                await self._send()
                meter.is_writing = False
        meter.finish()

    def _take_now(self) -> bool:
        """Send the events that are there; returns whether the task may go on waiting.

        Nearly all events go this way, as a part of the engine's turn: to wake the task would
        take as long as to write them. A client that reads slowly is left to the task.
        """
        assert self._connection is not None, "only then it is called"
        meter = self._meter
        if not self._connection.is_free:
            return False
        num_tokens = 0
        while num_tokens < _MAX_TOKENS_AT_ONCE:
            delta = meter.stream.take_nowait()
            meter.count(delta)
            self._unsent.append(self._writer.write(delta))
            num_tokens += len(delta.token_ids)
            if not meter.stream.has_pending:
                break
        if events := self.take_unsent():
            self._connection.send_now(events)
        return True

    def take_unsent(self) -> bytes:
        """Return events that were written and not sent, because the next one failed."""
        unsent = b"".join(self._unsent)
        self._unsent.clear()
        return unsent

    async def _write(self, delta: TextDelta) -> None:
        """Write the events of a delta, in a renderer worker if they are long."""
        self._meter.count(delta)
        self._meter.is_writing = True
        if not (delta.logprobs or delta.prompt_logprobs):
            self._unsent.append(self._writer.write(delta))
            return
        # The worker may take long. All log probabilities of a prompt come with its first
        # token.
        await self._send()
        num_entries = count_entries([delta])
        self.num_entries += num_entries
        write = partial(self._writer.write, delta)
        self._unsent.append(await run_writing(self._workers, write, num_entries))

    async def write_end(self) -> bytes:
        """Return the last events, which may repeat all log probabilities."""
        last = await run_writing(self._workers, self._writer.end, self.num_entries)
        return self.take_unsent() + last

    async def _send(self) -> None:
        if self._unsent:
            await self.send(self.take_unsent())
