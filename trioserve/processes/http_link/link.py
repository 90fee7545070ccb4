"""The side of an HTTP process: its news for its siblings, and its questions."""

from __future__ import annotations

import logging
from typing import Any, Final, Protocol

import trio

from .. import MessageStream
from ..questions import OpenQuestions
from .messages import (
    Answer,
    ConnectEngine,
    GiveBackPlace,
    NumAsked,
    Order,
    OrderKind,
    PeerLeft,
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


class ParentLink:
    """The connection of an HTTP process to its parent, and so to its siblings.

    Args:
      slot: 0 for the one that speaks for all.
      stream: the caller runs it.
    """

    def __init__(self, slot: int, stream: MessageStream[Any]) -> None:
        self.is_first = slot == 0
        self._stream = stream
        self._places = OpenQuestions[bool]()
        self._questions = OpenQuestions[bytes]()
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
        with self._questions.open(num_answers=None) as waiting:
            message = Question(number=waiting.number, question=question)
            self._stream.send_nowait(message)
            with trio.move_on_after(_ANSWER_SECONDS) as scope:
                await waiting.wait()
            if scope.cancelled_caught:
                logger.warning("an HTTP process does not answer, so others do without")
            return waiting.answers

    async def take_place(self, key: str, limit: int) -> bool:
        """Count another request of a key, unless `limit` are counted in all processes."""
        with self._places.open() as place:
            message = TakePlace(number=place.number, key=key, limit=limit)
            self._stream.send_nowait(message)
            try:
                [is_taken] = await place.wait()
            except trio.Cancelled:
                # The place may have been taken in the same turn.
                if any(place.answers):
                    self.give_back_place(key)
                raise
            return is_taken

    def give_back_place(self, key: str) -> None:
        """Say that a request for which a place was taken has ended."""
        self._stream.send_nowait(GiveBackPlace(key))

    def _take(self, message: object, member: Member, nursery: trio.Nursery) -> None:
        match message:
            case PeerState(number, state):
                member.take_state(number, state)
            case PeerLeft(number):
                member.forget(number)
            case PlaceTaken(number=number, key=key, is_taken=is_taken):
                if place := self._places.find(number):
                    place.take(is_taken)
                elif is_taken:
                    self.give_back_place(key)
            case Question(number=number, question=question):
                nursery.start_soon(self._answer, number, question, member)
            case NumAsked(number=number, num_asked=num_asked):
                if waiting := self._questions.find(number):
                    waiting.expect(num_asked)
            case Answer(number=number, answer=answer):
                if waiting := self._questions.find(number):
                    waiting.take(answer)
            case ConnectEngine():
                self._send_engine.send_nowait(message)
            case Order(kind):
                nursery.start_soon(member.obey, kind)
            case _:
                raise AssertionError(f"{message} is not for an HTTP process")

    async def _answer(self, number: int, question: bytes, member: Member) -> None:
        answer = await member.answer(question)
        self._stream.send_nowait(Answer(number=number, answer=answer))
