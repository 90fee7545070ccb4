"""Streams text as server-sent events."""

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
from ..respond import run_writing
from ..wire.chunks import DONE, error_event
from ..wire.logprobs import count_entries
from ..wire.usage import MeteredStream

logger = logging.getLogger(__name__)


class EventWriter(Protocol):
    """Turns an endpoint's deltas into events."""

    def write(self, delta: TextDelta) -> bytes:
        """Return the events of a delta; none if it says nothing new."""

    def end(self) -> bytes:
        """Return what follows the last delta."""


def respond_events(
    request: ScopedRequest,
    stream: MeteredStream,
    writer: EventWriter,
    workers: RendererWorkers,
) -> Response:
    """Answer with a stream that may last for hours."""
    response = Response(
        _generate_events(request, stream, writer, workers),
        headers={
            "Cache-Control": "no-cache",
            # nginx would gather the tokens otherwise.
            "X-Accel-Buffering": "no",
        },
        content_type="text/event-stream; charset=utf-8",
    )
    response.timeout = None
    return response


# The one async generator of the project: quart takes a body in no other form. Nothing
# is opened in it, since it is not always started (scope.py).
async def _generate_events(  # noqa: ASYNC900
    request: ScopedRequest,
    stream: MeteredStream,
    writer: EventWriter,
    workers: RendererWorkers,
) -> AsyncIterator[bytes]:
    try:
        async for delta in stream:
            # A prompt's log probabilities come all at once, with its first token.
            if events := await run_writing(
                workers, partial(writer.write, delta), count_entries([delta])
            ):
                yield events
        yield writer.end() + DONE
    except TrioserveError as error:
        yield error_event(error) + DONE
    except Exception:
        logger.exception("the stream of request %s failed", request.id)
        yield error_event(InternalError()) + DONE
