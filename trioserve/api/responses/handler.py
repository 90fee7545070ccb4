"""POST /v1/responses."""

from __future__ import annotations

from dataclasses import dataclass
import logging

from quart import Response
import trio

from ...errors import ResponseTooLarge, TrioserveError
from ...http.record.stream_meter import StreamMeter
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.streams.response_store import ResponseStore, StoredResponse
from ...http.wire.error_body import encode
from ...http.wire.respond import JSON, run_writing
from ...types.output import TextDelta
from ..decode.body import forget, read_request
from ..shared.generation import open_stream
from ..shared.logprobs import count_entries
from ..shared.sse import respond_events
from .background import answer_in_background
from .body import RESPONSE_BODY
from .calls import ResponseCall, prepare
from .events import ResponseEvent, encode_events

logger = logging.getLogger(__name__)


async def answer_response(state: ServerState, request: ScopedRequest) -> Response:
    """Answer a conversation of items, at once, as a stream, or later."""
    body, engine = await read_request(state, request, RESPONSE_BODY, state.require_text)
    call = await prepare(state, request, body, engine)
    # Without its items, which may be megabytes long and are not needed any more.
    forget(body, input="")
    if body.background:
        return await answer_in_background(
            state, request, call, streams=bool(body.stream)
        )
    with call.naming():
        meter = await open_stream(
            state, request, call.chat, engine, [call.prompt], call.sampling
        )
    if body.stream:
        streamed = _StreamedResponse(state.responses, call, meter)
        return respond_events(
            request,
            meter,
            streamed,
            engine.renderer.workers,
            opening=encode_events(call.writer.begin()),
            before_end=streamed.keep,
        )
    return await _answer_whole(state, call, meter)


async def _answer_whole(
    state: ServerState, call: ResponseCall, meter: StreamMeter
) -> Response:
    writer, num_entries = call.writer, 0
    async for delta in meter.stream:
        meter.count(delta)
        writer.push(delta)
        num_entries += count_entries([delta])
    meter.finish()

    def write() -> tuple[ResponseEnd, bytes]:
        end = end_response(state.responses, call, writer.finish(meter.usage))
        return end, end.encode()

    workers = call.engine.renderer.workers
    end, content = await run_writing(workers, write, num_entries)
    end.keep(state.responses)
    return Response(content, content_type=JSON)


class _StreamedResponse:
    """Writes the events of a response."""

    def __init__(
        self, store: ResponseStore, call: ResponseCall, meter: StreamMeter
    ) -> None:
        self._store = store
        self._call = call
        self._meter = meter
        self._end: ResponseEnd | None = None

    def write(self, delta: TextDelta) -> bytes:
        return encode_events(self._call.writer.push(delta))

    def end(self) -> bytes:
        events = self._call.writer.finish(self._meter.usage)
        self._end = end_response(self._store, self._call, events)
        return encode_events(self._end.events)

    def keep(self) -> None:
        """Store the response, which has ended."""
        assert self._end is not None, "its last events are written"
        self._end.keep(self._store)

    def fail(self, error: TrioserveError) -> bytes:
        return encode_events(self._call.writer.fail(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseEnd:
    """A response that has ended.

    Attributes:
      events: its last events.
      stored: the form in which it is stored; None if it is not.
    """

    call: ResponseCall
    events: list[ResponseEvent]
    stored: StoredResponse | None

    def encode(self) -> bytes:
        """Return the JSON of the response."""
        if self.stored is not None:
            return self.stored.content
        return encode(self.call.writer.response)

    def keep(self, store: ResponseStore) -> None:
        """Store the response if it is to be stored."""
        if self.stored is not None:
            store.put(self.stored, trio.current_time())


def end_response(
    store: ResponseStore, call: ResponseCall, events: list[ResponseEvent]
) -> ResponseEnd:
    """End a response that a client waits for. This may take long; any thread may call it.

    The last event says that the response is not stored if it is too large for that.

    Args:
      events: the last events, as the writer gave them.
    """
    stored = None
    if call.writer.response.store:
        stored = call.to_stored()
        try:
            store.check_size(stored)
        except ResponseTooLarge as error:
            logger.warning("the response %s is not stored: %s", stored.id, error)
            stored, events = None, call.writer.forgo_store(events)
    return ResponseEnd(call=call, events=events, stored=stored)
