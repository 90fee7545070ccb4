"""HTTP processes in one event loop, in virtual time: states, places, questions and orders."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trioserve.processes import MessageStream
from trioserve.processes.http_link import Hub, ParentLink
from trioserve.processes.http_link.messages import (
    FromHttp,
    HttpReady,
    Order,
    OrderKind,
    ToHttp,
)
from trioserve.testing.processes import open_streams


class Member:
    """A server that records its messages."""

    def __init__(self, link: ParentLink) -> None:
        self.link = link
        self.state = b"new"
        self.seen: dict[int, list[bytes]] = {}
        self.orders: list[OrderKind] = []
        self.hangs = False

    def describe_state(self) -> bytes:
        return self.state

    def take_state(self, member: int, state: bytes) -> None:
        self.seen.setdefault(member, []).append(state)

    def forget(self, member: int) -> None:
        del self.seen[member]

    async def answer(self, question: bytes) -> bytes:
        if self.hangs:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return question + self.state

    async def obey(self, order: OrderKind) -> None:
        await trio.lowlevel.checkpoint()
        self.orders.append(order)


@asynccontextmanager
async def open_members(number: int) -> AsyncIterator[tuple[list[Member], Any]]:
    """Yield HTTP processes, and a function that sends one of them an order."""
    hub, members, streams = Hub(), [], []
    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            for each in range(number):
                near, far = stack.enter_context(
                    open_streams(ours=ToHttp, theirs=FromHttp)
                )
                member = Member(ParentLink(each, near))
                hub.join(each, far)
                nursery.start_soon(near.run)  # noqa: ASYNC113 (all begin below)
                nursery.start_soon(far.run)  # noqa: ASYNC113
                nursery.start_soon(serve, hub, each, far)  # noqa: ASYNC113
                nursery.start_soon(member.link.run, member)
                member.link.send_nowait(HttpReady(address="here"))
                members.append(member)
                streams.append(far)
            await wait_all_tasks_blocked()
            yield members, lambda to, kind: streams[to].send_nowait(Order(kind))
            nursery.cancel_scope.cancel()


async def serve(hub: Hub, number: int, stream: MessageStream[Any]) -> None:
    while True:
        hub.take(number, await stream.receive())


async def test_a_state_is_sent_when_it_has_changed_and_not_too_often(
    autojump_clock: MockClock,
) -> None:
    async with open_members(2) as ([first, second], _), trio.open_nursery() as nursery:
        nursery.start_soon(first.link.publish, first)
        await trio.sleep(1)
        assert second.seen == {0: [b"new"]}
        for text in (b"1", b"2", b"3"):
            first.state = text
            first.link.note_change()
        await trio.sleep(1)
        # The first change is told at once, and later ones together.
        first.state = b"4"
        first.link.note_change()
        await wait_all_tasks_blocked()
        first.state = b"5"
        first.link.note_change()
        first.state = b"6"
        await trio.sleep(1)
        assert second.seen == {0: [b"new", b"3", b"4", b"6"]}
        assert not first.seen
        nursery.cancel_scope.cancel()


async def test_the_answers_of_all_others_are_returned() -> None:
    async with open_members(3) as (members, _):
        for member, state in zip(members, (b"a", b"b", b"c")):
            member.state = state
        assert sorted(await members[0].link.ask(b"?")) == [b"?b", b"?c"]
    async with open_members(1) as ([alone], _):
        assert await alone.link.ask(b"?") == []


async def test_a_process_that_hangs_delays_an_answer_for_a_second(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_members(3) as ([first, second, third], _):
        second.hangs, third.state = True, b"c"
        began = trio.current_time()
        assert await first.link.ask(b"?") == [b"?c"]
        assert trio.current_time() - began == 1.0
    assert "an HTTP process does not answer" in caplog.text


async def test_a_place_is_taken_for_all_processes() -> None:
    async with open_members(2) as ([first, second], _):
        assert await first.link.take_place("ann", 1)
        assert not await second.link.take_place("ann", 1)
        first.link.give_back_place("ann")
        await wait_all_tasks_blocked()
        assert await second.link.take_place("ann", 1)


async def test_a_place_that_comes_too_late_is_given_back() -> None:
    async with open_members(2) as ([first, second], _):
        with trio.CancelScope() as scope:
            scope.cancel()
            await first.link.take_place("ann", 1)
        assert scope.cancelled_caught
        await wait_all_tasks_blocked()
        assert await second.link.take_place("ann", 1)


async def test_an_order_is_carried_out() -> None:
    async with open_members(2) as ([first, second], order):
        order(1, "drain")
        await wait_all_tasks_blocked()
        assert (first.orders, second.orders) == ([], ["drain"])
