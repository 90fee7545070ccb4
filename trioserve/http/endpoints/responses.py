"""POST /v1/responses."""

from __future__ import annotations

from functools import partial

import msgspec
from quart import Response

from ...errors import TrioserveError
from ...types.output import TextDelta
from ..connection.scope import ScopedRequest
from ..decode.body import read_request
from ..decode.response_requests import ResponseRequest
from ..respond import JSON, run_writing
from ..state import ServerState
from ..stream_meter import StreamMeter
from ..wire.logprobs import count_entries
from ..wire.response_events import encode_events
from ..wire.response_writer import ResponseWriter
from ..wire.responses import encode
from .background_responses import answer_in_background
from .generation_steps import open_stream
from .response_calls import ResponseCall, keep, prepare
from .sse import respond_events


async def answer_response(state: ServerState, request: ScopedRequest) -> Response:
    """Answer a conversation of items, at once, as a stream, or later."""
    body, engine = await read_request(state, request, ResponseRequest)
    call = await prepare(state, request, body, engine)
    # Without its items, which may be megabytes long and are not needed any more.
    body = msgspec.structs.replace(body, input="")
    if body.background:
        return await answer_in_background(
            state, request, call, streams=bool(body.stream)
        )
    with call.naming():
        meter = await open_stream(
            state, request, call.chat, engine, [call.prompt], call.sampling
        )
    if body.stream:
        return respond_events(
            request,
            meter,
            _StreamedResponse(call.writer, meter),
            engine.renderer.workers,
            opening=encode_events(call.writer.begin()),
            before_end=partial(keep, state, call),
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
    writer.finish(meter.usage)
    content = await run_writing(
        call.engine.renderer.workers, lambda: encode(writer.response), num_entries
    )
    await keep(state, call, num_entries)
    return Response(content, content_type=JSON)


class _StreamedResponse:
    """Writes the events of a response."""

    def __init__(self, writer: ResponseWriter, meter: StreamMeter) -> None:
        self._writer = writer
        self._meter = meter

    def write(self, delta: TextDelta) -> bytes:
        return encode_events(self._writer.push(delta))

    def end(self) -> bytes:
        return encode_events(self._writer.finish(self._meter.usage))

    def fail(self, error: TrioserveError) -> bytes:
        return encode_events(self._writer.fail(error))
