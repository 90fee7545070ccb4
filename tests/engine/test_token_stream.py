"""A token stream joins deltas for a slow reader, and ends with its sequences."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
import sys
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from trioserve.engine.generation.token_stream import ReaderQueue, TokenStream
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


async def test_a_function_takes_deltas_while_the_reader_waits(
    nursery: trio.Nursery,
) -> None:
    """And the reader runs for the end alone."""
    stream, _ = make_stream()
    taken: list[TokenDelta] = []
    read: list[TokenDelta] = []
    has_ended = trio.Event()

    def take() -> bool:
        taken.append(stream.take_nowait())
        return True

    async def run() -> None:
        with stream.taking(take):
            async for delta in stream:
                read.append(delta)
        has_ended.set()

    first, *others = [make_delta(number) for number in range(4)]
    last = make_delta(9, finish_reason="length")
    # Before the reader waits.
    stream.push_nowait(first)
    nursery.start_soon(run)
    await wait_all_tasks_blocked()
    for delta in [*others, last]:
        assert not has_ended.is_set()
        stream.push_nowait(delta)
    assert read == [first]
    assert taken == [*others, last]
    await has_ended.wait()


async def test_the_reader_takes_what_the_function_leaves(nursery: trio.Nursery) -> None:
    stream, _ = make_stream(2)
    read: list[TokenDelta] = []

    async def run() -> None:
        with stream.taking(lambda: False):
            async for delta in stream:
                read.append(delta)

    nursery.start_soon(run)
    await wait_all_tasks_blocked()
    deltas = [make_delta(1), make_delta(2, index=1)]
    for delta in deltas:
        stream.push_nowait(delta)
    await wait_all_tasks_blocked()
    assert read == deltas
    nursery.cancel_scope.cancel()


async def test_an_error_of_the_function_is_the_reader_s(nursery: trio.Nursery) -> None:
    """It comes in the engine loop, which goes on; later deltas would leave a gap behind them."""
    stream, _ = make_stream()

    def take() -> bool:
        raise ValueError("a defect")

    async def run() -> None:
        with stream.taking(take), pytest.raises(ValueError, match="a defect"):
            await stream.__anext__()
        nursery.cancel_scope.cancel()

    nursery.start_soon(run)
    await wait_all_tasks_blocked()
    stream.push_nowait(make_delta(1))
    stream.push_nowait(make_delta(2))
    await trio.sleep_forever()


# Readers of one step are called in groups, so that no turn of the event loop has all of them.


@pytest.fixture
async def queue(nursery: trio.Nursery) -> AsyncIterator[ReaderQueue]:
    queue = ReaderQueue()
    nursery.start_soon(queue.run)
    await wait_all_tasks_blocked()
    yield queue
    nursery.cancel_scope.cancel()


def add_step(queue: ReaderQueue, called: list[int], numbers: range) -> None:
    for number in numbers:
        queue.add(partial(called.append, number))
    queue.flush()


async def test_a_turn_calls_one_group(queue: ReaderQueue) -> None:
    called: list[int] = []
    add_step(queue, called, range(40))
    counts = [len(called)]
    while counts[-1] < 40:
        await trio.lowlevel.checkpoint()
        counts.append(len(called))
    assert sorted(set(counts)) == [16, 32, 40]
    assert called == [*range(40)]


async def test_the_next_step_waits_behind_the_one_before(queue: ReaderQueue) -> None:
    called: list[int] = []
    add_step(queue, called, range(20))
    add_step(queue, called, range(20, 23))
    assert len(called) == 16
    await wait_all_tasks_blocked()
    assert called == [*range(23)]


async def test_a_few_readers_are_called_at_once_in_each_step(
    queue: ReaderQueue,
) -> None:
    called: list[int] = []
    for step in range(1, 6):
        add_step(queue, called, range(16))
        assert len(called) == 16 * step
