"""Responses that are generated while no client waits for them.

POST   starts a task in the server's nursery, and answers when the engine has taken it
GET    shows what there is, or follows the events
POST .../cancel, DELETE of the response or the request, and the drain of the server end it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
import logging

from quart import Response
import trio

from ...errors import InternalError, RequestCancelled, ResponseTooLarge, TrioserveError
from ...frontend import StreamLimits
from ...http.background_request import BackgroundRequest
from ...http.keys.key_use import Ticket
from ...http.record.stream_meter import StreamMeter
from ...http.record.usage import Usage
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.streams.event_log import EventLog
from ...http.streams.response_store import StoredResponse, StoredTurn
from ...http.time_limit import LAST_WORDS_SECONDS
from ...http.wire.error_body import encode
from ...http.wire.respond import respond_json, run_writing
from ...render import RendererWorkers
from ..shared.generation import open_meter
from ..shared.logprobs import count_entries
from ..shared.sse import respond_stream
from .answers import ResponseObject
from .calls import ResponseCall
from .events import ResponseEvent, StreamFailed, encode_event

logger = logging.getLogger(__name__)


async def answer_in_background(
    state: ServerState, request: ScopedRequest, call: ResponseCall, *, streams: bool
) -> Response:
    """Begin to generate, and answer with the response as it is, or with its events.

    Raises:
      BackgroundFull: too many responses run in the background.
      Also raises the errors of open_text.
    """
    request.body.release()
    request.progress.enter("queue")
    running = _Running(
        state,
        call,
        BackgroundRequest(state, request, call.sampling),
        streams=streams,
        ticket=request.ticket,
        arrived_at=request.arrived_at,
        limits=request.time_limit.limit_stream(call.chat.max_queue_seconds),
    )
    with call.naming():
        await state.background.start(running.generate, request.live.client)
    if streams:
        return follow(request, running.log, 0)
    return respond_json(call.writer.response)


def follow(request: ScopedRequest, log: EventLog, number: int) -> Response:
    """Answer with the events of a response.

    Args:
      number: the first event.
    """
    return respond_stream(_Follower(request, log, number).send)


class _Follower:
    """Sends the events of a response to one client.

    Args:
      number: the first event.
    """

    def __init__(self, request: ScopedRequest, log: EventLog, number: int) -> None:
        self._request = request
        self._log = log
        self._number = number

    async def send(self) -> bytes:
        """Send the events, and return the last ones."""
        request = self._request
        try:
            async with request.open_events() as connection:
                while events := await self._read():
                    self._number += len(events)
                    await connection.send(b"".join(events))
        except TrioserveError as error:
            # It ends the stream and not the response, which others may follow.
            request.answer.note_error(error.code)
            return encode_event(StreamFailed.of(error, self._number))
        return b""

    async def _read(self) -> list[bytes]:
        # The response may have the same deadline, and its last events tell more.
        grace = LAST_WORDS_SECONDS / 2
        limit, progress = self._request.time_limit, self._request.progress
        with limit.until_answer(progress, grace_seconds=grace):
            return await self._log.read(self._number)
        raise AssertionError("the block returns or raises")


class _Running:
    """One response in the background.

    Args:
      request: the part of its request that runs in the background.
      streams: keep the events, so that clients can follow them.
      ticket: counts the request and its tokens.
      arrived_at: trio.current_time() when the request came.
      limits: the time that it may take.
    """

    def __init__(
        self,
        state: ServerState,
        call: ResponseCall,
        request: BackgroundRequest,
        *,
        streams: bool,
        ticket: Ticket,
        arrived_at: float,
        limits: StreamLimits,
    ) -> None:
        self.log = EventLog()
        self._state = state
        self._call = call
        self._request = request
        self._streams = streams
        self._ticket = ticket
        self._arrived_at = arrived_at
        self._limits = limits
        self._is_stored = False
        self._num_entries = 0
        # The response as it was before its last events were written.
        self._before_end: ResponseObject | None = None

    def show(self) -> bytes:
        """Return the JSON of the response as it is now."""
        return encode(self._before_end or self._call.writer.response)

    def cancel(self) -> None:
        self._request.cancel()

    async def wait_ended(self) -> None:
        """Wait until the store has the response as it ended."""
        await self.log.wait_ended()

    @property
    def _log_to_follow(self) -> EventLog | None:
        return self.log if self._streams else None

    @property
    def _workers(self) -> RendererWorkers:
        return self._call.engine.renderer.workers

    async def generate(  # noqa: ASYNC128 (_run calls started)
        self, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Generate the response, as a task of BackgroundTasks."""
        try:
            await self._end(await self._write(task_status))
        except Exception as error:
            if not self._is_stored:
                raise
            self._abandon(error)
        finally:
            # Its followers must not wait for ever.
            self.log.end()
            self._request.end()

    async def _write(  # noqa: ASYNC128 (_run calls started)
        self, task_status: trio.TaskStatus[None]
    ) -> list[ResponseEvent]:
        """Generate the response; returns its last events."""
        writer = self._call.writer
        try:
            # A drain does not wait: the result would be lost with the server.
            with self._state.lifecycle.until_drain():
                usage = await self._run(task_status)
        except TrioserveError as error:
            if not self._is_stored:
                raise
            self._request.note_error(error.code)
            if isinstance(error, RequestCancelled):
                return self._write_end(writer.cancel)
            return self._write_end(partial(writer.fail, error))
        self._request.note_answer()
        return self._write_end(partial(writer.finish, usage))

    def _write_end(
        self, write: Callable[[], list[ResponseEvent]]
    ) -> list[ResponseEvent]:
        # The end may still turn out to be too large, so no client sees it before it is kept.
        self._before_end = self._call.writer.response
        return write()

    async def _run(self, task_status: trio.TaskStatus[None]) -> Usage:
        """Generate until the stream ends; returns its tokens."""
        call = self._call
        async with open_meter(
            self._state,
            call.chat,
            call.engine,
            [call.prompt],
            call.sampling,
            ticket=self._ticket,
            arrived_at=self._arrived_at,
            limits=self._limits,
        ) as meter:
            # Before it can be cancelled.
            self._request.begin(meter)
            self._state.responses.put(self._to_stored(), trio.current_time())
            self._is_stored = True
            self._show(map(encode_event, call.writer.begin()))
            task_status.started()
            await self._read(meter)
        return meter.usage

    async def _read(self, meter: StreamMeter) -> None:
        async for delta in meter.stream:
            meter.count(delta)
            self._num_entries += count_entries([delta])
            self._show(map(encode_event, self._call.writer.push(delta)))
        meter.finish()

    def _show(self, events: Iterable[bytes]) -> None:
        """Give new events to the clients that follow them."""
        if self._streams:
            self.log.append(events)
            response_id = self._call.writer.response.id
            self._state.responses.count_events(response_id, trio.current_time())

    def _to_stored(self) -> StoredResponse:
        """Return the response as it is stored while it is running."""
        call = self._call
        return StoredResponse(
            id=call.writer.response.id,
            owner=call.owner,
            earlier=call.earlier,
            turn=StoredTurn(input=call.input, output=b"[]"),
            is_background=True,
            log=self._log_to_follow,
            running=self,
        )

    async def _end(self, events: list[ResponseEvent]) -> None:
        def write() -> tuple[list[bytes], StoredResponse]:
            return list(map(encode_event, events)), self._call.to_stored(
                self._log_to_follow
            )

        encoded, stored = await run_writing(self._workers, write, self._num_entries)
        num_bytes = sum(map(len, encoded)) if self._streams else 0
        self._state.responses.check_size(stored, num_more_bytes=num_bytes)
        self._state.responses.replace(stored, trio.current_time())
        self._show(encoded)

    def _abandon(self, error: Exception) -> None:
        """Store that the response has failed, without its output."""
        response_id = self._call.writer.response.id
        if isinstance(error, TrioserveError):
            reason = error
            logger.warning("the response %s failed: %s", response_id, error)
        else:
            reason = InternalError()
            logger.error("the response %s failed", response_id, exc_info=error)
        self._request.note_error(reason.code)
        event = encode_event(self._call.writer.abandon(reason, self.log.num_events))
        stored = self._call.to_stored(self._log_to_follow)
        try:
            self._state.responses.check_size(stored, num_more_bytes=len(event))
        except ResponseTooLarge:
            nothing = StoredTurn(input=b"[]", output=b"[]")
            stored = replace(stored, earlier=(), turn=nothing, log=None)
        self._state.responses.replace(stored, trio.current_time())
        self._show([event])
