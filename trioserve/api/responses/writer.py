"""From the deltas of an answer to a response, and to the events of its stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import itertools

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
    Events,
    OpenCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
)


class ResponseWriter:
    """Writes one response. All methods return its next events, in order.

    Args:
      response: the response without output; its status is `queued` or `in_progress`.
      texts: the texts of tokens; None if the client wants no log probabilities.
      make_id: returns a new unique id, without a prefix.
      tell_time: returns seconds since 1970.
    """

    def __init__(
        self,
        response: ResponseObject,
        texts: TokenTexts | None,
        *,
        make_id: Callable[[], str],
        tell_time: Callable[[], int],
    ) -> None:
        self._response = response
        self._texts = texts
        self._make_id = make_id
        self._tell_time = tell_time
        self._number = itertools.count().__next__
        self._items: list[OutputItem] = []
        self._open: OpenItem | None = None
        self._num_calls = 0
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
        return list(self._begin_response())

    def _begin_response(self) -> Events:
        yield ResponseCreated(sequence_number=self._number(), response=self._response)
        if self._response.status == "queued":
            yield ResponseQueued(
                sequence_number=self._number(), response=self._response
            )
        else:
            yield self._announce_progress()

    def push(self, delta: TextDelta) -> list[ResponseEvent]:
        """Write the events of a delta of the only sequence."""
        return list(self._push(delta))

    def _push(self, delta: TextDelta) -> Events:
        if self._response.status == "queued":
            self._change(status="in_progress")
            yield self._announce_progress()
        if delta.reasoning:
            yield from self._add_reasoning(delta.reasoning)
        self._logprobs += self._build_logprobs(delta)
        pieces = delta.tool_calls
        # The rest of the open call comes before the text behind it.
        if pieces and not pieces[0].id:
            yield from self._add_call(pieces[0])
            pieces = pieces[1:]
        if delta.text:
            yield from self._add_text(delta.text)
        elif delta.reasoning or delta.tool_calls:
            self._logprobs.clear()
        for piece in pieces:
            yield from self._add_call(piece)
        if delta.finish_reason == "length":
            self._cut = IncompleteDetails(reason="max_output_tokens")
        elif delta.finish_reason in ("repetition", "deadline"):
            self._cut = IncompleteDetails(reason=delta.finish_reason)

    def finish(self, usage: Usage) -> list[ResponseEvent]:
        """Write the events behind the last delta."""
        return list(self._finish(usage))

    def _finish(self, usage: Usage) -> Events:
        if self._open is None and not self._items:
            # An answer without any token still has a text, which is empty.
            yield from self._begin_message()
        if self._logprobs and isinstance(self._open, OpenMessage):
            yield from self._add_text("")
        if self._cut is not None:
            yield from self._close("incomplete")
            self._end(
                status="incomplete",
                incomplete_details=self._cut,
                usage=ResponseUsage.of(usage),
            )
            yield ResponseIncomplete(
                sequence_number=self._number(), response=self._response
            )
            return
        yield from self._close("completed")
        self._end(
            status="completed",
            completed_at=self._tell_time(),
            usage=ResponseUsage.of(usage),
        )
        yield ResponseCompleted(sequence_number=self._number(), response=self._response)

    def fail(self, error: TrioserveError) -> list[ResponseEvent]:
        """Write the last event after an error."""
        return list(self._fail(error))

    def _fail(self, error: TrioserveError) -> Events:
        yield from self._close("incomplete")
        self._end(status="failed", error=ResponseError.of(error))
        yield ResponseFailed(sequence_number=self._number(), response=self._response)

    def abandon(self, error: TrioserveError, number: int) -> ResponseEvent:
        """Fail without any output, because it cannot be written or kept.

        Args:
          number: of the event.
        """
        self._open = None
        self._items.clear()
        self._end(
            status="failed",
            error=ResponseError.of(error),
            completed_at=None,
            incomplete_details=None,
        )
        return ResponseFailed(sequence_number=number, response=self._response)

    def forgo_store(self, events: list[ResponseEvent]) -> list[ResponseEvent]:
        """Say in the last events of a response that it is not stored."""
        self._change(store=False)
        last = msgspec.structs.replace(events[-1], response=self._response)
        return [*events[:-1], last]

    def cancel(self) -> list[ResponseEvent]:
        """Write the last event of a response that the client has cancelled."""
        return list(self._cancel())

    def _cancel(self) -> Events:
        yield from self._close("incomplete")
        self._end(status="cancelled")
        yield ResponseIncomplete(
            sequence_number=self._number(), response=self._response
        )

    def _announce_progress(self) -> ResponseEvent:
        return ResponseInProgress(
            sequence_number=self._number(), response=self._response
        )

    def _change(self, **fields: object) -> None:
        self._response = msgspec.structs.replace(self._response, **fields)

    def _end(self, **fields: object) -> None:
        self._change(output=tuple(self._items), **fields)

    def _build_logprobs(self, delta: TextDelta) -> tuple[TokenLogprob, ...]:
        if self._texts is None or not delta.logprobs:
            return ()
        return build_chat_logprobs(delta.logprobs, self._texts).content

    def _add_reasoning(self, text: str) -> Events:
        if not isinstance(self._open, OpenReasoning):
            yield from self._begin(OpenReasoning, "reasoning")
        assert isinstance(self._open, OpenReasoning), "it was opened above"
        yield from self._open.add(text)

    def _add_text(self, text: str) -> Events:
        if not isinstance(self._open, OpenMessage):
            yield from self._begin_message()
        assert isinstance(self._open, OpenMessage), "it was opened above"
        logprobs = tuple(self._logprobs)
        self._logprobs.clear()
        yield from self._open.add(text, logprobs)

    def _add_call(self, piece: ToolCallDelta) -> Events:
        # Invariant: calls come in order, and no piece of a call comes after a later call.
        if piece.index == self._num_calls:
            self._num_calls += 1
            yield from self._close("completed")
            self._open = OpenCall(
                self._name("function_call"),
                len(self._items),
                self._number,
                call_id=piece.id,
                name=piece.name,
            )
            yield from self._open.begin()
        assert isinstance(self._open, OpenCall), "a piece belongs to the last call"
        if piece.arguments:
            yield from self._open.add(piece.arguments)

    def _begin_message(self) -> Events:
        yield from self._begin(OpenMessage, "message")

    def _begin(self, item_type: type[OpenMessage | OpenReasoning], kind: str) -> Events:
        yield from self._close("completed")
        self._open = item_type(self._name(kind), len(self._items), self._number)
        yield from self._open.begin()

    def _close(self, status: ItemStatus) -> Iterator[ResponseEvent]:
        if self._open is not None:
            yield from self._open.close(status)
            self._items.append(self._open.to_item(status))
            self._open = None
        self._change(output=tuple(self._items))

    def _name(self, kind: str) -> str:
        return f"{ID_PREFIXES[kind]}_{self._make_id()}"
