"""The end of a response: its last events, and whether it is stored."""

from __future__ import annotations

from dataclasses import dataclass
import logging

import trio

from ...errors import ResponseTooLarge
from ...http.streams.response_store import ResponseStore, StoredResponse
from ...http.wire.encode import encode
from .calls import ResponseCall
from .events import ResponseEvent

logger = logging.getLogger(__name__)


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
