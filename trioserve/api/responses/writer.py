"""From the deltas of an answer to a response, and to the events of its stream."""

from __future__ import annotations

from collections.abc import Callable
import itertools
from typing import TypeVar

import msgspec

from ...errors import TrioserveError
from ...http.record.usage import Usage
from ...types.output import TextDelta, ToolCallDelta
from ..shared.logprobs import TokenLogprob, TokenTexts, build_chat_logprobs
from .answers import (
    IncompleteDetails,
    ItemStatus,
    OutputItem,
    ResponseError,
    ResponseObject,
    ResponseUsage,
)
from .events import (
    ResponseCompleted,
    ResponseCreated,
    ResponseEvent,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseQueued,
)
from .output_items import (
    ID_PREFIXES,
    OpenCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
)
from .tools import list_namespaced

ItemT = TypeVar("ItemT", bound=OpenItem)


class ResponseWriter:
    """Writes one response. All methods return its next events, in order.

    Args:
      response: the response without output; its status is `queued` or `in_progress`.
      texts: the texts of tokens; None if the client wants no log probabilities.
      make_id: returns a new unique id, without a prefix.
      tell_time: returns the seconds since 1970.
    """

    def __init__(
        self,
        response: ResponseObject,
        texts: TokenTexts | None,
        *,
        make_id: Callable[[], str],
        tell_time: Callable[[], float],
    ) -> None:
        self._response = response
        self._texts = texts
        self._make_id = make_id
        self._tell_time = tell_time
        self._numbers = itertools.count()
        # Those that no method has returned.
        self._events: list[ResponseEvent] = []
        self._items: list[OutputItem] = []
        self._open: OpenItem | None = None
        self._num_calls = 0
        self._namespaced = list_namespaced(response.tools)
        self._cut: IncompleteDetails | None = None
        # Of tokens whose text has not come yet. They may still turn out to be reasoning or
        # a call, which have none.
        self._logprobs: list[TokenLogprob] = []

    @property
    def response(self) -> ResponseObject:
        """The response with the items that are complete."""
        return self._response

    def begin(self) -> list[ResponseEvent]:
        """Write the events before the first delta."""
        is_queued = self._response.status == "queued"
        self._show(ResponseCreated)
        self._show(ResponseQueued if is_queued else ResponseInProgress)
        return self._take()

    def push(self, delta: TextDelta) -> list[ResponseEvent]:
        """Write the events of a delta of the only sequence."""
        if self._response.status == "queued":
            self._change(status="in_progress")
            self._show(ResponseInProgress)
        if delta.reasoning:
            self._find_open(OpenReasoning, "reasoning").add(delta.reasoning)
        if self._texts is not None and delta.logprobs:
            self._logprobs += build_chat_logprobs(delta.logprobs, self._texts).content
        pieces = delta.tool_calls
        # The rest of the open call comes before the text behind it.
        if pieces and not pieces[0].id:
            self._add_call(pieces[0])
            pieces = pieces[1:]
        if delta.text:
            self._add_text(delta.text)
        elif delta.reasoning or delta.tool_calls:
            self._logprobs.clear()
        for piece in pieces:
            self._add_call(piece)
        if delta.finish_reason == "length":
            self._cut = IncompleteDetails(reason="max_output_tokens")
        elif delta.finish_reason in ("repetition", "deadline"):
            self._cut = IncompleteDetails(reason=delta.finish_reason)
        return self._take()

    def finish(self, usage: Usage) -> list[ResponseEvent]:
        """Write the events behind the last delta."""
        if self._open is None and not self._items:
            # An answer without any token still has a text, which is empty.
            self._find_open(OpenMessage, "message")
        if self._logprobs and isinstance(self._open, OpenMessage):
            self._add_text("")
        self._close("completed" if self._cut is None else "incomplete")
        self._change(usage=ResponseUsage.of(usage))
        if self._cut is None:
            self._change(status="completed", completed_at=int(self._tell_time()))
            self._show(ResponseCompleted)
        else:
            self._change(status="incomplete", incomplete_details=self._cut)
            self._show(ResponseIncomplete)
        return self._take()

    def fail(self, error: TrioserveError) -> list[ResponseEvent]:
        """Write the last event after an error."""
        self._close("incomplete")
        self._change(status="failed", error=ResponseError.of(error))
        self._show(ResponseFailed)
        return self._take()

    def cancel(self) -> list[ResponseEvent]:
        """Write the last event of a response that the client has cancelled."""
        self._close("incomplete")
        self._change(status="cancelled")
        self._show(ResponseIncomplete)
        return self._take()

    def abandon(self, error: TrioserveError, number: int) -> ResponseEvent:
        """Fail without any output, because it cannot be written or kept.

        Args:
          number: of the event.
        """
        self._open = None
        self._items.clear()
        self._change(
            status="failed",
            error=ResponseError.of(error),
            completed_at=None,
            incomplete_details=None,
            output=(),
        )
        return ResponseFailed(sequence_number=number, response=self._response)

    def forgo_store(self, events: list[ResponseEvent]) -> list[ResponseEvent]:
        """Say in the last events of a response that it is not stored."""
        self._change(store=False)
        last = msgspec.structs.replace(events[-1], response=self._response)
        return [*events[:-1], last]

    def _emit(self, kind: Callable[..., ResponseEvent], **fields: object) -> None:
        self._events.append(kind(sequence_number=next(self._numbers), **fields))

    def _show(self, kind: Callable[..., ResponseEvent]) -> None:
        self._emit(kind, response=self._response)

    def _take(self) -> list[ResponseEvent]:
        events, self._events = self._events, []
        return events

    def _change(self, **fields: object) -> None:
        self._response = msgspec.structs.replace(self._response, **fields)

    def _add_text(self, text: str) -> None:
        logprobs = tuple(self._logprobs)
        self._logprobs.clear()
        self._find_open(OpenMessage, "message").add(text, logprobs)

    def _add_call(self, piece: ToolCallDelta) -> None:
        # Invariant: calls come in order, and no piece of a call comes after a later call.
        if piece.index == self._num_calls:
            self._num_calls += 1
            fields = {"call_id": piece.id, "name": piece.name}
            if piece.name in self._namespaced:
                fields["name"], fields["namespace"] = self._namespaced[piece.name]
            self._begin(OpenCall, "function_call", **fields)
        assert isinstance(self._open, OpenCall), "a piece belongs to the last call"
        if piece.arguments:
            self._open.add(piece.arguments)

    def _find_open(self, item_type: type[ItemT], kind: str) -> ItemT:
        """Return the open item, after a new one is opened if it is of another type."""
        if isinstance(self._open, item_type):
            return self._open
        return self._begin(item_type, kind)

    def _begin(
        self, item_type: Callable[..., ItemT], kind: str, **fields: str
    ) -> ItemT:
        self._close("completed")
        id = f"{ID_PREFIXES[kind]}_{self._make_id()}"
        self._open = opened = item_type(id, len(self._items), self._emit, **fields)
        opened.begin()
        return opened

    def _close(self, status: ItemStatus) -> None:
        if self._open is not None:
            self._items.append(self._open.close(status))
            self._open = None
        self._change(output=tuple(self._items))
