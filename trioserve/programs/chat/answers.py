"""A model as a conversation sees it: messages in, pieces of an answer out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
import re
from typing import Any, Final, Protocol

from ..http.events import Delta, EventReader, EventsUnreadable
from ..http.reasons import find_reason

# A message in OpenAI's form.
Message = Mapping[str, Any]

# Servers have no common code for this. These are words of the messages of trioserve, vLLM,
# llama-server and OpenAI.
_CONTEXT_FULL: Final = re.compile(
    r"context[ _](length|size|window)|exceed_context|maximum model length|max_model_len",
    re.IGNORECASE,
)


class AnswerFailed(Exception):
    """Raised when an answer cannot begin, or breaks off; the message is a sentence."""

    @property
    def is_context_full(self) -> bool:
        """True if the conversation seems to be too long for the model."""
        return _CONTEXT_FULL.search(str(self)) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of an answer.

    Args:
      text: of the answer itself.
      reasoning: the model's thoughts before its answer.
      finish_reason: in the last piece; "stop", "length" or "repetition", and others of other
        servers.
    """

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None


class Answerer(Protocol):
    """A model that answers conversations.

    Attributes:
      name: of the model.
      takes_images: None if that is not known before a picture is sent.
    """

    name: str
    takes_images: bool | None

    async def list_models(self) -> list[str]:
        """Return the names of the models and adapters that may be chosen.

        Raises:
          AnswerFailed: they cannot be asked for.
        """

    async def choose(self, name: str) -> None:
        """Let another model or adapter answer.

        Raises:
          AnswerFailed: there is none with this name, or nobody can be asked.
        """

    def open_answer(
        self, messages: Sequence[Message], sampling: Mapping[str, object]
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece]]:
        """Begin an answer; to leave the block stops it.

        Args:
          messages: if the last one is the assistant's, the answer continues it.

        Raises:
          AnswerFailed: also raised by the iterator.
        """


def is_open(messages: Sequence[Message]) -> bool:
    """Return whether the last message is the beginning of the answer."""
    return bool(messages) and messages[-1]["role"] == "assistant"


@asynccontextmanager
async def open_fitting_answer(
    model: Answerer, messages: Sequence[Message], sampling: Mapping[str, object]
) -> AsyncIterator[AsyncIterator[Piece]]:
    """Begin an answer; max_tokens shrinks to the room that the model has.

    Raises:
      AnswerFailed: also raised by the iterator.
    """
    async with AsyncExitStack() as stack:
        try:
            opening = model.open_answer(messages, sampling)
            pieces = await stack.enter_async_context(opening)
        except AnswerFailed as error:
            if not error.is_context_full or "max_tokens" not in sampling:
                raise
            rest = {name: sampling[name] for name in sampling if name != "max_tokens"}
            opening = model.open_answer(messages, rest)
            pieces = await stack.enter_async_context(opening)
        yield pieces


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
