"""The other HTTP processes of a server, which serve the same port and the same engine."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from ..record.cards import RequestCard, RequestDetails
from .keys import Key

AnswerT = TypeVar("AnswerT")


class Siblings(Protocol):
    """All of them.

    Attributes:
      is_first: this process is the one that speaks for all of them, such as in the log.
    """

    @property
    def is_first(self) -> bool: ...

    async def ask(self, question: bytes) -> list[bytes]:
        """Return the answers of all that answer in time."""

    async def take_place(self, key: str, limit: int) -> bool:
        """Count another request of a key, unless so many are counted; returns whether it was."""

    def give_back_place(self, key: str) -> None:
        """Say that a request for which a place was taken has ended."""


class ListRequests(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Show running requests, or cancel them; the answer is a list of RequestCards.

    Args:
      asker: the key of the client that asks; other keys' requests may be hidden from it.
      wanted: the name of the key whose requests are shown; None for all.
      request_id: the id of the requests that are shown; None for all.
    """

    asker: Key | None
    wanted: str | None = None
    request_id: str | None = None
    cancels: bool = False


class DescribeRequests(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Show everything that requests with an id hold."""

    asker: Key | None
    request_id: str


class ReadMetrics(msgspec.Struct, frozen=True, tag=True):
    """Return the samples of all metrics."""


class AwaitAdapters(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer true when so many changes of adapters are known."""

    revision: int


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to DescribeRequests.

    Args:
      num_left_out: requests that are not shown, because there are too many.
    """

    shown: list[RequestDetails]
    num_left_out: int


Cards = list[RequestCard]
Question = ListRequests | DescribeRequests | ReadMetrics | AwaitAdapters


async def ask_siblings(
    siblings: Siblings | None, question: Question, answers: type[AnswerT]
) -> list[AnswerT]:
    """Ask all other HTTP processes; without any there are no answers.

    Args:
      answers: the type of an answer.
    """
    if siblings is None:
        return []
    found = await siblings.ask(msgspec.msgpack.encode(question))
    return [msgspec.msgpack.decode(each, type=answers) for each in found]
