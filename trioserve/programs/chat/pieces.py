"""The pieces of an answer, out of the events of a server."""

from __future__ import annotations

from collections.abc import Iterator

from ..http.events import Delta, EventReader, EventsUnreadable
from ..http.reasons import find_reason
from .answers import AnswerFailed, Piece


def read_pieces(events: EventReader, part: bytes) -> Iterator[Piece]:
    """Yield the pieces that a part of the stream completes.

    Raises:
      AnswerFailed: the server reports an error, or sends something else.
    """
    try:
        for event in events.feed(part):
            if event.error is not None:
                reason = find_reason(event.error)
                raise AnswerFailed(f"the server broke the answer off: {reason}")
            for choice in event.choices[:1]:
                delta = choice.delta or Delta()
                yield Piece(
                    text=delta.content or "",
                    reasoning=delta.reasoning or delta.reasoning_content or "",
                    finish_reason=choice.finish_reason,
                )
    except EventsUnreadable:
        raise AnswerFailed(
            "the server sends no events that a chat could show"
        ) from None
