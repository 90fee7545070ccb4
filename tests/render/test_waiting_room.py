"""The limits of requests that are rendered or wait for it."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import trio
from trio.testing import MockClock

from trioserve.errors import RendererFull
from trioserve.render.workers.waiting_room import WaitingRoom, WaitingRoomStatistics


def count(room: WaitingRoom) -> tuple[int, int]:
    statistics = room.statistics()
    return statistics.num_requests, statistics.num_characters


async def test_the_room_admits_no_more_requests_than_its_limit() -> None:
    room = WaitingRoom(2, 1000)
    with room.enter(1):
        with room.enter(2):
            assert count(room) == (2, 3)
            with pytest.raises(RendererFull, match="2 requests") as caught:
                with room.enter(0):
                    raise AssertionError("there is no place")
            assert count(room) == (2, 3)
        with room.enter(3):
            assert count(room) == (2, 4)
    assert caught.value.status == 429
    assert caught.value.retry_after_seconds >= 1
    assert room.num_refused == 1
    assert count(room) == (0, 0)


async def test_the_room_admits_no_more_text_than_its_limit() -> None:
    room = WaitingRoom(10, 1000)
    with room.enter(600):
        with pytest.raises(RendererFull):
            with room.enter(401):
                raise AssertionError("there is too much")
        with room.enter(400):
            assert count(room) == (2, 1000)


async def test_a_text_above_the_limit_is_admitted_alone() -> None:
    room = WaitingRoom(10, 1000)
    with room.enter(5000):
        with pytest.raises(RendererFull):
            with room.enter(1):
                raise AssertionError("there is too much")
    with room.enter(1):
        with pytest.raises(RendererFull):
            with room.enter(5000):
                raise AssertionError("there is somebody else")


async def test_a_full_room_refuses_the_client_that_fills_it() -> None:
    room = WaitingRoom(4, 1000)
    with ExitStack() as inside:
        for client, num_requests in (("ann", 4), ("bob", 2)):
            for _ in range(num_requests):
                inside.enter_context(room.enter(250, client))
            with pytest.raises(RendererFull):
                room.check_room(0, client)
        # A client that has nothing inside may have a long text.
        room.check_room(900, "carl")
        inside.enter_context(room.enter(10, "carl"))
        with pytest.raises(RendererFull):
            room.check_room(400, "carl")
        # A probe asks for everybody.
        with pytest.raises(RendererFull):
            room.check_room(0)
    assert count(room) == (0, 0)


async def test_a_request_that_fails_or_is_cancelled_leaves_the_room(
    autojump_clock: MockClock,
) -> None:
    room = WaitingRoom(1, 1000)
    with pytest.raises(ZeroDivisionError), room.enter(1):
        raise ZeroDivisionError
    with trio.move_on_after(1.0):
        with room.enter(1):
            await trio.sleep_forever()
    assert room.statistics() == WaitingRoomStatistics(num_requests=0, num_characters=0)


async def test_a_refusal_says_when_all_will_be_rendered(
    autojump_clock: MockClock,
) -> None:
    """Requests of 100,000 characters take half a second each."""
    room = WaitingRoom(1000, 2_000_000)
    with ExitStack() as others:
        for _ in range(19):
            others.enter_context(room.enter(100_000))
        for _ in range(120):
            with room.enter(100_000):
                await trio.sleep(0.5)
        with room.enter(100_000), pytest.raises(RendererFull) as caught:
            with room.enter(1):
                raise AssertionError("there is too much")
    assert caught.value.retry_after_seconds == pytest.approx(10, abs=1)
