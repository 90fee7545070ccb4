"""The side of an HTTP process: its news for its siblings, and its questions."""

from __future__ import annotations

import itertools
import logging
from typing import Any, Final, Protocol

import trio

from .. import MessageStream
from .messages import (
    Answer,
    Answered,
    Ask,
    ConnectEngine,
    GiveBackPlace,
    NumAsked,
    Order,
    OrderKind,
    PeerGone,
    PeerState,
    PlaceTaken,
    PublishState,
    Question,
    TakePlace,
)

logger = logging.getLogger(__name__)

# The time for answers. A process that hangs must not make the others hang.
_ANSWER_SECONDS: Final = 1.0

# The least time between two states. Each costs every other process some tens of microseconds.
_STATE_SECONDS: Final = 0.05


class Member(Protocol):
    """The server in this process, which the link serves."""

    def describe_state(self) -> bytes:
        """Return the state that the siblings need."""

    def take_state(self, member: int, state: bytes) -> None:
        """Take the state of a sibling."""

    def forget(self, member: int) -> None:
        """Say that a sibling has ended."""

    async def answer(self, question: bytes) -> bytes:
        """Answer a question of a sibling."""

    async def obey(self, order: OrderKind) -> None:
        """Carry out an order of the parent."""


class _Waiting:
    """A question that waits for its answers."""

    def __init__(self) -> None:
        self.num_asked: int | None = None
        self.num_answered = 0
        self.answers: list[bytes] = []
        self.is_over = trio.Event()

    def check(self) -> None:
        if self.num_asked is not None and self.num_answered >= self.num_asked:
            self.is_over.set()


class _Place:
    """A place that a request asks for.

    Attributes:
      is_wanted: the request still waits for it.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.is_wanted = True
        self.is_taken = False
        self.is_answered = trio.Event()


class ParentLink:
    """The connection of an HTTP process to its parent, and so to its siblings.

    Args:
      slot: 0 for the one that speaks for all.
      stream: the caller runs it.
    """

    def __init__(self, slot: int, stream: MessageStream[Any]) -> None:
        self.is_first = slot == 0
        self._stream = stream
        self._numbers = itertools.count()
        # Those without an answer, by number.
        self._places: dict[int, _Place] = {}
        self._questions: dict[int, _Waiting] = {}
        self._has_changed = trio.Event()
        self._send_engine, self._receive_engine = trio.open_memory_channel[
            ConnectEngine
        ](1)

    def send_nowait(self, message: object) -> None:
        """Send the parent a message."""
        self._stream.send_nowait(message)

    def note_change(self) -> None:
        """Say that describe_state has changed."""
        self._has_changed.set()

    async def wait_engine(self) -> ConnectEngine:
        """Wait until the engine can be connected."""
        return await self._receive_engine.receive()

    async def run(self, member: Member) -> None:
        """Receive messages until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._take(await self._stream.receive(), member, nursery)

    async def publish(self, member: Member) -> None:
        """Send the state whenever it has changed, until cancelled; at first as it is."""
        while True:
            self._has_changed = trio.Event()
            self._stream.send_nowait(PublishState(member.describe_state()))
            await trio.sleep(_STATE_SECONDS)
            await self._has_changed.wait()

    async def ask(self, question: bytes) -> list[bytes]:
        """Return the answers of all siblings that answer in time."""
        number, waiting = next(self._numbers), _Waiting()
        self._questions[number] = waiting
        try:
            self._stream.send_nowait(Ask(number=number, question=question))
            with trio.move_on_after(_ANSWER_SECONDS) as scope:
                await waiting.is_over.wait()
            if scope.cancelled_caught:
                logger.warning("an HTTP process does not answer, so others do without")
        finally:
            del self._questions[number]
        return waiting.answers

    async def take_place(self, key: str, limit: int) -> bool:
        """Count another request of a key, unless `limit` are counted in all processes."""
        number, place = next(self._numbers), _Place(key)
        self._places[number] = place
        self._stream.send_nowait(TakePlace(number=number, key=key, limit=limit))
        try:
            await place.is_answered.wait()
        except trio.Cancelled:
            place.is_wanted = False
            if place.is_taken:
                self.give_back_place(key)
            raise
        return place.is_taken

    def give_back_place(self, key: str) -> None:
        """Say that a request for which a place was taken has ended."""
        self._stream.send_nowait(GiveBackPlace(key))

    def _take(self, message: object, member: Member, nursery: trio.Nursery) -> None:
        match message:
            case PeerState(number, state):
                member.take_state(number, state)
            case PeerGone(number):
                member.forget(number)
            case PlaceTaken(number=number, is_taken=is_taken):
                self._answer_place(self._places.pop(number), is_taken)
            case Question(number=number, question=question):
                nursery.start_soon(self._answer, number, question, member)
            case NumAsked(number=number, num_asked=num_asked):
                if waiting := self._questions.get(number):
                    waiting.num_asked = num_asked
                    waiting.check()
            case Answered(number=number, answer=answer):
                if waiting := self._questions.get(number):
                    waiting.num_answered += 1
                    if answer is not None:
                        waiting.answers.append(answer)
                    waiting.check()
            case ConnectEngine():
                self._send_engine.send_nowait(message)
            case Order(kind):
                nursery.start_soon(member.obey, kind)
            case _:
                raise AssertionError(f"{message} is not for an HTTP process")

    def _answer_place(self, place: _Place, is_taken: bool) -> None:
        if place.is_wanted:
            place.is_taken = is_taken
            place.is_answered.set()
        elif is_taken:
            self.give_back_place(place.key)

    async def _answer(self, number: int, question: bytes, member: Member) -> None:
        answer = await member.answer(question)
        self._stream.send_nowait(Answer(number=number, answer=answer))
