"""A token stream joins deltas for a slow reader, and ends with its sequences."""

from __future__ import annotations

from collections.abc import AsyncIterator
import sys
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from trioserve.engine.generation.token_stream import TokenStream, WakeQueue
from trioserve.errors import EngineDied, InternalError, InvalidParameter
from trioserve.types.ids import SequenceId
from trioserve.types.output import SequenceError, TokenDelta, TokenLogprobs


def make_stream(num_sequences: int = 1) -> tuple[TokenStream, list[int]]:
    """Return a stream, and the list of the indexes that its reader stops."""
    stopped: list[int] = []
    stream = TokenStream(num_sequences, lambda index, _: stopped.append(index))
    return stream, stopped


def make_delta(*token_ids: int, index: int = 0, **fields: Any) -> TokenDelta:
    return TokenDelta(
        sequence_id=SequenceId(index), index=index, token_ids=token_ids, **fields
    )


def make_logprobs(*token_ids: int) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(token_id=i, logprob=-i, rank=1) for i in token_ids)


async def test_unread_deltas_are_joined() -> None:
    stream, _ = make_stream()
    stream.push_nowait(make_delta(prompt_logprobs=make_logprobs(7, 8)))
    stream.push_nowait(make_delta(1, logprobs=make_logprobs(1), num_cached_tokens=4))
    last = make_delta(
        2,
        3,
        logprobs=make_logprobs(2, 3),
        num_cached_tokens=4,
        finish_reason="stop",
        stop_token_id=3,
    )
    stream.push_nowait(last)
    assert [delta async for delta in stream] == [
        make_delta(
            1,
            2,
            3,
            logprobs=make_logprobs(1, 2, 3),
            prompt_logprobs=make_logprobs(7, 8),
            num_cached_tokens=4,
            finish_reason="stop",
            stop_token_id=3,
        )
    ]


async def test_many_unread_tokens_come_in_pieces() -> None:
    """Turning thousands of tokens into text at once would block the event loop."""
    stream, _ = make_stream()
    for token_id in range(699):
        stream.push_nowait(make_delta(token_id))
    stream.push_nowait(make_delta(699, finish_reason="length"))
    deltas = [delta async for delta in stream]
    assert [len(delta.token_ids) for delta in deltas] == [256, 256, 188]
    assert [each for delta in deltas for each in delta.token_ids] == [*range(700)]
    assert [delta.finish_reason for delta in deltas] == [None, None, "length"]


async def test_unread_deltas_have_a_weight() -> None:
    stream, _ = make_stream(2)
    assert stream.num_unread_bytes == 0
    top = ((1, -1.0),) * 20
    [logprobs] = make_logprobs(1)
    rich = msgspec.structs.replace(logprobs, top=top)
    weights = []
    for delta in (make_delta(1), make_delta(1, index=1), make_delta(1)):
        stream.push_nowait(delta)
        weights.append(stream.num_unread_bytes)
    assert weights == [weights[0], 2 * weights[0], 3 * weights[0]]
    stream.push_nowait(make_delta(1, index=1, logprobs=(rich,)))
    # Each alternative has two numbers and a tuple.
    least = 20 * (sys.getsizeof(top[0]) + sys.getsizeof(0) + sys.getsizeof(0.0))
    assert least < stream.num_unread_bytes - weights[2] < 2 * least
    stream.stop(0, is_complete=True)
    assert stream.num_unread_bytes > least
    await anext(stream)
    assert stream.num_unread_bytes == 0


async def test_sequences_are_not_joined_with_each_other() -> None:
    stream, _ = make_stream(2)
    deltas = [
        make_delta(1, index=1, finish_reason="stop"),
        make_delta(2, index=0, finish_reason="length"),
    ]
    for delta in deltas:
        stream.push_nowait(delta)
    assert [delta async for delta in stream] == deltas


async def test_a_delta_after_the_end_of_its_sequence_is_dropped() -> None:
    """The core in another process may send one before it gets the end."""
    stream, _ = make_stream(2)
    first = make_delta(1, finish_reason="stop")
    stream.push_nowait(first)
    stream.push_nowait(make_delta(2))
    stream.push_nowait(make_delta(3, finish_reason="length"))
    assert await stream.__anext__() == first
    with trio.move_on_after(0) as scope:
        await stream.__anext__()
    # The other sequence is still open, so the stream waits for it.
    assert scope.cancelled_caught


async def test_a_stopped_sequence_gives_nothing_more() -> None:
    stream, stopped = make_stream(2)
    stream.push_nowait(make_delta(1))
    stream.stop(0, is_complete=True)
    stream.push_nowait(make_delta(2))
    last = make_delta(3, index=1, finish_reason="length")
    stream.push_nowait(last)
    assert [delta async for delta in stream] == [last]
    assert stopped == [0]


async def test_a_sequence_that_has_ended_is_not_stopped_again() -> None:
    stream, stopped = make_stream()
    stream.push_nowait(make_delta(1, finish_reason="length"))
    stream.stop(0, is_complete=True)
    assert [delta async for delta in stream] == []
    assert stopped == []


async def test_a_failure_is_raised_after_the_unread_deltas() -> None:
    stream, _ = make_stream()
    stream.push_nowait(make_delta(1))
    stream.fail(EngineDied())
    assert await stream.__anext__() == make_delta(1)
    with pytest.raises(EngineDied):
        await stream.__anext__()


async def test_a_failure_wakes_the_reader(nursery: trio.Nursery) -> None:
    stream, _ = make_stream()

    async def read() -> None:
        with pytest.raises(EngineDied):
            await stream.__anext__()
        nursery.cancel_scope.cancel()

    nursery.start_soon(read)
    await wait_all_tasks_blocked()
    stream.fail(EngineDied())
    await trio.sleep_forever()


async def test_a_reader_of_unread_deltas_lets_other_tasks_run() -> None:
    stream, _ = make_stream(2)
    stream.push_nowait(make_delta(1, finish_reason="length"))
    with assert_checkpoints():
        await stream.__anext__()


@pytest.mark.parametrize(
    ("error", "raised"),
    [(SequenceError(reason="no"), InvalidParameter), (SequenceError(), InternalError)],
)
async def test_a_failed_sequence_ends_the_request(
    error: SequenceError, raised: type[Exception]
) -> None:
    """With the client's fault, or with ours."""
    stream, _ = make_stream(2)
    stream.push_nowait(make_delta(error=error))
    with pytest.raises(raised):
        await stream.__anext__()


# Readers of one step wake in groups, so that no turn of the event loop has all of them.


@pytest.fixture
async def queue(nursery: trio.Nursery) -> AsyncIterator[WakeQueue]:
    queue = WakeQueue()
    nursery.start_soon(queue.run)
    await wait_all_tasks_blocked()
    yield queue
    nursery.cancel_scope.cancel()


def count_set(events: list[trio.Event]) -> int:
    num_set = sum(event.is_set() for event in events)
    assert all(
        event.is_set() for event in events[:num_set]
    ), "the first ones come first"
    return num_set


async def test_a_turn_sets_one_group(queue: WakeQueue) -> None:
    events = [trio.Event() for _ in range(40)]
    queue.begin()
    for event in events:
        queue.add(event)
    counts = [count_set(events)]
    while counts[-1] < len(events):
        await trio.lowlevel.checkpoint()
        counts.append(count_set(events))
    assert sorted(set(counts)) == [16, 32, 40]


async def test_the_next_step_waits_behind_the_one_before(queue: WakeQueue) -> None:
    first = [trio.Event() for _ in range(20)]
    second = [trio.Event() for _ in range(3)]
    for events in (first, second):
        queue.begin()
        for event in events:
            queue.add(event)
    assert count_set([*first, *second]) == 16
    await wait_all_tasks_blocked()
    assert count_set([*first, *second]) == 23


async def test_a_few_readers_wake_at_once_in_each_step(queue: WakeQueue) -> None:
    for _ in range(5):
        events = [trio.Event() for _ in range(16)]
        queue.begin()
        for event in events:
            queue.add(event)
        assert count_set(events) == 16


async def test_an_event_that_is_set_takes_no_place(queue: WakeQueue) -> None:
    is_set, waits = trio.Event(), [trio.Event() for _ in range(16)]
    is_set.set()
    queue.begin()
    for event in [is_set, is_set, *waits]:
        queue.add(event)
    assert count_set(waits) == 16
