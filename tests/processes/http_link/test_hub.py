"""The hub passes on what HTTP processes tell each other, and counts places for all of them."""

from __future__ import annotations

from trioserve.processes.http_link.hub import Hub, Places
from trioserve.processes.http_link.messages import (
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


class Member:
    """An HTTP process, as the hub sees it."""

    def __init__(self, hub: Hub, number: int) -> None:
        self.number = number
        self._hub = hub
        self._received: list[object] = []
        hub.join(number, self)
        hub.take(number, HttpReady(address="here"))

    def send_nowait(self, message: object) -> None:
        self._received.append(message)

    def read(self) -> list[object]:
        """Return the messages since the last call."""
        received, self._received = self._received, []
        return received

    def send(self, message: object) -> None:
        self._hub.take(self.number, message)


def open_members(number: int) -> tuple[Hub, list[Member]]:
    hub = Hub()
    return hub, [Member(hub, each) for each in range(number)]


def test_a_state_goes_to_all_others_and_to_those_that_come_later() -> None:
    hub, [first, second, third] = open_members(3)
    first.send(PublishState(b"a"))
    first.send(PublishState(b"b"))
    assert first.read() == []
    states = [PeerState(0, b"a"), PeerState(0, b"b")]
    assert second.read() == third.read() == states
    assert Member(hub, 3).read() == [PeerState(0, b"b")]


def test_others_learn_that_a_http_process_has_ended() -> None:
    hub, [first, second] = open_members(2)
    first.send(PublishState(b"a"))
    second.read()
    hub.leave(0)
    assert second.read() == [PeerLeft(0)]
    assert Member(hub, 2).read() == []


def take(member: Member, limit: int = 2) -> bool:
    member.send(TakePlace(number=7, key="ann", limit=limit))
    [answer] = member.read()
    assert isinstance(answer, PlaceTaken) and answer.number == 7
    return answer.is_taken


def test_all_http_processes_together_keep_to_the_limit_of_a_key() -> None:
    hub, [first, second] = open_members(2)
    assert take(first) and take(second)
    assert not take(first) and not take(second)
    second.send(GiveBackPlace("ann"))
    assert take(first) and not take(second)
    # Places of a process that has died are free.
    hub.leave(0)
    second.read()
    assert take(second) and take(second) and not take(second)


def test_places_of_one_key_are_not_those_of_another_one() -> None:
    places = Places()
    assert places.take(0, "ann", 1) and places.take(0, "bob", 1)
    assert not places.take(1, "bob", 1)
    places.give_back(0, "bob")
    assert places.take(1, "bob", 1)


def test_a_http_process_that_does_not_serve_yet_is_not_asked() -> None:
    hub, [first] = open_members(1)
    hub.join(1, first)
    first.send(Question(number=5, question=b"?"))
    assert first.read() == [NumAsked(number=5, num_asked=0)]


def test_nobody_waits_for_the_answer_of_a_http_process_that_has_ended() -> None:
    hub, [first, second, third] = open_members(3)
    first.send(Question(number=5, question=b"?"))
    first.read()
    [question] = third.read()
    assert isinstance(question, Question)
    hub.leave(1)
    assert first.read() == [PeerLeft(1), Answer(number=5, answer=None)]
    # An answer for a process that has ended goes nowhere.
    hub.leave(0)
    third.read()
    third.send(Answer(number=question.number, answer=b"3"))
    assert third.read() == []
    assert second.number == 1
