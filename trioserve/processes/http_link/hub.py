"""The parent's side: it passes on what HTTP processes tell and ask each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
import itertools
from typing import Protocol

from .messages import (
    Answer,
    GiveBackPlace,
    HttpReady,
    NumAsked,
    PeerLeft,
    PeerState,
    PlaceTaken,
    PublishState,
    Question,
    TakePlace,
)


class HttpProcessDied(Exception):
    """Raised when an HTTP process has ended and gets no successor; the message says how."""


class Sender(Protocol):
    """The connection to an HTTP process."""

    def send_nowait(self, message: object) -> None: ...


@dataclass(slots=True, kw_only=True)
class _Open:
    """A question that was passed on.

    Attributes:
      asker, number: the HTTP process that asks, and its number of the question.
      missing: the HTTP processes that have not answered.
    """

    asker: int
    number: int
    missing: set[int]


class Places:
    """Counts the requests of each key that run at once, by HTTP process."""

    def __init__(self) -> None:
        self._taken: dict[str, Counter[int]] = {}

    def take(self, member: int, key: str, limit: int) -> bool:
        """Count another request of a key, unless `limit` are counted."""
        taken = self._taken.get(key, Counter())
        if taken.total() >= limit:
            return False
        taken[member] += 1
        self._taken[key] = taken
        return True

    def give_back(self, member: int, key: str) -> None:
        """Count a request of a key less; it was taken."""
        taken = self._taken[key]
        taken[member] -= 1
        if not taken.total():
            # Keys may change for ever.
            del self._taken[key]

    def drop(self, member: int) -> None:
        """Count no request of an HTTP process any more."""
        for key, taken in [*self._taken.items()]:
            taken.pop(member, None)
            if not taken.total():
                del self._taken[key]


class Hub:
    """Connects the HTTP processes of a server. It waits for none of them."""

    def __init__(self) -> None:
        self._members: dict[int, Sender] = {}
        # Those that may be asked.
        self._ready: set[int] = set()
        self._states: dict[int, bytes] = {}
        self._places = Places()
        self._open: dict[int, _Open] = {}
        self._numbers = itertools.count()

    def join(self, member: int, sender: Sender) -> None:
        """Take a new HTTP process; it learns the states of all others."""
        for other, state in self._states.items():
            sender.send_nowait(PeerState(other, state))
        self._members[member] = sender

    def leave(self, member: int) -> None:
        """Forget an HTTP process that has ended, and all that it holds."""
        del self._members[member]
        self._ready.discard(member)
        self._states.pop(member, None)
        self._places.drop(member)
        for _, other in self._list_others(member):
            other.send_nowait(PeerLeft(member))
        for number, question in [*self._open.items()]:
            if question.asker == member:
                del self._open[number]
            elif member in question.missing:
                self._pass_answer(number, member, None)

    def take(self, member: int, message: object) -> None:
        """Carry out a message of an HTTP process."""
        sender = self._members[member]
        match message:
            case HttpReady():
                self._ready.add(member)
            case PublishState(state):
                self._states[member] = state
                for _, other in self._list_others(member):
                    other.send_nowait(PeerState(member, state))
            case TakePlace(number=number, key=key, limit=limit):
                is_taken = self._places.take(member, key, limit)
                taken = PlaceTaken(number=number, key=key, is_taken=is_taken)
                sender.send_nowait(taken)
            case GiveBackPlace(key):
                self._places.give_back(member, key)
            case Question(number=number, question=question):
                self._pass_question(member, number, question)
            case Answer(number=number, answer=answer):
                self._pass_answer(number, member, answer)
            case _:
                raise AssertionError(f"{message} is not for the hub")

    def _pass_question(self, asker: int, number: int, question: bytes) -> None:
        others = [each for each in self._list_others(asker) if each[0] in self._ready]
        self._members[asker].send_nowait(NumAsked(number=number, num_asked=len(others)))
        if not others:
            return
        passed = next(self._numbers)
        missing = {member for member, _ in others}
        self._open[passed] = _Open(asker=asker, number=number, missing=missing)
        for _, other in others:
            other.send_nowait(Question(number=passed, question=question))

    def _pass_answer(self, number: int, member: int, answer: bytes | None) -> None:
        question = self._open.get(number)
        # The process that has asked is gone.
        if question is None:
            return
        asker = self._members[question.asker]
        asker.send_nowait(Answer(number=question.number, answer=answer))
        question.missing.remove(member)
        if not question.missing:
            del self._open[number]

    def _list_others(self, member: int) -> Iterator[tuple[int, Sender]]:
        return ((k, v) for k, v in self._members.items() if k != member)
