"""The parent's side: it passes on what front processes tell and ask each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import itertools
from typing import Protocol

from .messages import (
    Answer,
    Answered,
    Ask,
    FrontReady,
    GiveBackPlace,
    NumAsked,
    PeerGone,
    PeerState,
    PlaceTaken,
    PublishState,
    Question,
    TakePlace,
)
from .places import Places


class Sender(Protocol):
    """The connection to a front process."""

    def send_nowait(self, message: object) -> None: ...


@dataclass(slots=True, kw_only=True)
class _Open:
    """A question that was passed on.

    Attributes:
      asker, number: the front process that asks, and its number of the question.
      missing: the front processes that have not answered.
    """

    asker: int
    number: int
    missing: set[int]


class Hub:
    """Connects the front processes of a server. It waits for none of them."""

    def __init__(self) -> None:
        self._fronts: dict[int, Sender] = {}
        # Those that may be asked.
        self._ready: set[int] = set()
        self._states: dict[int, bytes] = {}
        self._places = Places()
        self._open: dict[int, _Open] = {}
        self._numbers = itertools.count()

    def join(self, front: int, sender: Sender) -> None:
        """Take a new front process; it learns the states of all others."""
        for other, state in self._states.items():
            sender.send_nowait(PeerState(other, state))
        self._fronts[front] = sender

    def leave(self, front: int) -> None:
        """Forget a front process that has ended, and all that it holds."""
        del self._fronts[front]
        self._ready.discard(front)
        self._states.pop(front, None)
        self._places.drop(front)
        for _, other in self._list_others(front):
            other.send_nowait(PeerGone(front))
        for number, question in [*self._open.items()]:
            if question.asker == front:
                del self._open[number]
            elif front in question.missing:
                self._pass_answer(number, front, None)

    def take(self, front: int, message: object) -> None:
        """Carry out a message of a front process."""
        sender = self._fronts[front]
        match message:
            case FrontReady():
                self._ready.add(front)
            case PublishState(state):
                self._states[front] = state
                for _, other in self._list_others(front):
                    other.send_nowait(PeerState(front, state))
            case TakePlace(number=number, key=key, limit=limit):
                is_taken = self._places.take(front, key, limit)
                sender.send_nowait(PlaceTaken(number=number, is_taken=is_taken))
            case GiveBackPlace(key):
                self._places.give_back(front, key)
            case Ask(number=number, question=question):
                self._pass_question(front, number, question)
            case Answer(number=number, answer=answer):
                self._pass_answer(number, front, answer)
            case _:
                raise AssertionError(f"{message} is not for the hub")

    def _pass_question(self, asker: int, number: int, question: bytes) -> None:
        others = [each for each in self._list_others(asker) if each[0] in self._ready]
        self._fronts[asker].send_nowait(NumAsked(number=number, num_asked=len(others)))
        if not others:
            return
        passed = next(self._numbers)
        missing = {front for front, _ in others}
        self._open[passed] = _Open(asker=asker, number=number, missing=missing)
        for _, other in others:
            other.send_nowait(Question(number=passed, question=question))

    def _pass_answer(self, number: int, front: int, answer: bytes | None) -> None:
        question = self._open.get(number)
        # The process that has asked is gone.
        if question is None:
            return
        asker = self._fronts[question.asker]
        asker.send_nowait(Answered(number=question.number, answer=answer))
        question.missing.remove(front)
        if not question.missing:
            del self._open[number]

    def _list_others(self, front: int) -> Iterator[tuple[int, Sender]]:
        return ((k, v) for k, v in self._fronts.items() if k != front)
