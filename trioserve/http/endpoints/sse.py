"""Streams an answer as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
import logging
from typing import Protocol

from quart import Response

from ...errors import InternalError, TrioserveError
from ...render import RendererWorkers
from ...types.output import TextDelta
from ..connection.scope import ScopedRequest
from ..respond import EVENTS, run_writing
from ..stream_meter import StreamMeter
from ..wire.chunks import DONE, error_event
from ..wire.logprobs import count_entries

logger = logging.getLogger(__name__)


class EventWriter(Protocol):
    """Turns the deltas of an endpoint into events."""

    def write(self, delta: TextDelta) -> bytes:
        """Return the events of a delta; empty if the delta has nothing to report."""

    def end(self) -> bytes:
        """Return the events behind the last delta."""


def respond_events(
    request: ScopedRequest,
    meter: StreamMeter,
    writer: EventWriter,
    workers: RendererWorkers,
) -> Response:
    """Answer with a stream, which may last for hours."""
    response = Response(
        _generate_events(request, meter, writer, workers),
        headers={
            "Cache-Control": "no-cache",
            # Without this, nginx collects tokens before it passes them on.
            "X-Accel-Buffering": "no",
        },
        content_type=f"{EVENTS}; charset=utf-8",
    )
    response.timeout = None
    return response


# The one async generator of the project: quart takes a streamed body in no other form.
# It opens no resource, because quart does not always start it (connection/scope.py).
async def _generate_events(  # noqa: ASYNC900
    request: ScopedRequest,
    meter: StreamMeter,
    writer: EventWriter,
    workers: RendererWorkers,
) -> AsyncIterator[bytes]:
    try:
        async for delta in meter.stream:
            meter.count(delta)
            meter.is_writing = True
            if events := await _write(writer, delta, workers):
                yield events
            meter.is_writing = False
        meter.finish()
        yield writer.end() + DONE
    except TrioserveError as error:
        yield error_event(error) + DONE
    except Exception:
        logger.exception("the stream of request %s failed", request.id)
        yield error_event(InternalError()) + DONE


async def _write(
    writer: EventWriter, delta: TextDelta, workers: RendererWorkers
) -> bytes:
    """Write the events of a delta, in a renderer worker if they are long."""
    if not (delta.logprobs or delta.prompt_logprobs):
        return writer.write(delta)
    # All log probabilities of a prompt come with its first token.
    return await run_writing(
        workers, partial(writer.write, delta), count_entries([delta])
    )
