"""Requests with pooled inputs: complete, in order, and freed when a client leaves."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
import re
import struct

import pytest
import trio
import trio.testing

from trioserve.engine.pooling.core import LocalPoolingCore
from trioserve.engine.pooling.engine import TensorEngine
from trioserve.errors import (
    ContextLengthExceeded,
    EngineDied,
    EngineProcessDied,
    InvalidParameter,
    QueueFull,
    ShuttingDown,
    TaskNotServed,
)
from trioserve.scheduler.pooling.scheduler import PoolingScheduler
from trioserve.testing.fake_device import (
    FakeExecutor,
    FakePoolingDevice,
    fake_vector,
    make_info,
    make_pooling_info,
)
from trioserve.testing.processes import HostedPoolingCore
from trioserve.types.client import Client
from trioserve.types.pooling import PoolingInput, PoolingParams, PoolingTask
from trioserve.types.tensors import TensorBytes

EMBED = PoolingParams(task="embed")


# Where the ends of requests and cores may differ.
BOTH_PLACES = pytest.mark.parametrize(
    "is_remote", [False, True], ids=["here", "in_a_process"]
)


class Bench:
    """A loop over a fake device whose steps take 10 ms, and 1 ms for each token."""

    def __init__(
        self,
        *,
        is_remote: bool = False,
        task: PoolingTask = "embed",
        max_num_inputs: int = 100,
        max_num_batched_tokens: int = 16,
        max_num_seqs: int = 8,
        matryoshka: tuple[int, ...] | None = None,
        fail_at_step: int | None = None,
    ) -> None:
        self.device = FakePoolingDevice()
        core = LocalPoolingCore(
            PoolingScheduler(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
            ),
            FakeExecutor(
                self.device.step, token_seconds=0.001, fail_at_step=fail_at_step
            ),
        )
        self.loop = TensorEngine(
            HostedPoolingCore(core) if is_remote else core,
            info=make_info(64, vocab_size=1000),
            pooling=make_pooling_info(task, matryoshka=matryoshka),
            max_num_inputs=max_num_inputs,
        )
        self.fresh = self.loop.statistics()

    async def check_nothing_is_held(self) -> None:
        await trio.testing.wait_all_tasks_blocked()
        assert self.loop.statistics() == self.fresh
        assert self.device.kept == {}


def make_input(*token_ids: int) -> PoolingInput:
    return PoolingInput(token_ids=array("i", token_ids))


def read(tensor: TensorBytes) -> list[float]:
    return list(struct.unpack(f"{len(tensor.data) // 4}f", tensor.data))


def expect(tensor: TensorBytes, token_ids: Sequence[int]) -> None:
    assert read(tensor) == pytest.approx(fake_vector(token_ids, 8), abs=1e-6)


@BOTH_PLACES
async def test_results_come_in_the_order_of_inputs(
    autojump_clock: trio.testing.MockClock,
    is_remote: bool,
) -> None:
    bench = Bench(is_remote=is_remote)
    inputs = [make_input(*range(1, 1 + size)) for size in (9, 3, 12, 1, 7)]
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.loop.run)
        with bench.loop.open_request(5, EMBED) as request:
            results = await request.pool(inputs)
        for each, result in zip(inputs, results, strict=True):
            expect(result, each.token_ids)
        assert bench.loop.counters().num_inputs == 5
        assert bench.loop.counters().num_input_tokens == 32
        await bench.check_nothing_is_held()
        nursery.cancel_scope.cancel()


async def test_no_inputs_have_no_results(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.loop.run)
        with bench.loop.open_request(0, EMBED) as request:
            assert await request.pool([]) == []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("leaves_after", [0.0, 0.005, 0.03, 0.06])
@BOTH_PLACES
async def test_a_request_that_is_left_holds_nothing(
    autojump_clock: trio.testing.MockClock,
    leaves_after: float,
    is_remote: bool,
) -> None:
    """The client leaves before, within or between steps; waiting inputs stay unread."""
    bench = Bench(is_remote=is_remote)
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.loop.run)
        with trio.move_on_after(leaves_after):
            with bench.loop.open_request(100, EMBED) as request:
                await request.pool([make_input(*[1] * 16) for _ in range(100)])
        num_steps = len(bench.device.plans)
        await trio.sleep(1)
        assert len(bench.device.plans) <= num_steps + 1
        await bench.check_nothing_is_held()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("leaves_after", [0.0, 0.005, 0.02, 0.04, 0.06, 0.1])
@BOTH_PLACES
async def test_the_query_of_a_client_that_leaves_is_freed(
    autojump_clock: trio.testing.MockClock,
    leaves_after: float,
    is_remote: bool,
) -> None:
    """It leaves before, while or after the query is read, or during its documents."""
    bench = Bench(is_remote=is_remote, task="token_embed")
    params = PoolingParams(task="token_embed")
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.loop.run)
        with trio.move_on_after(leaves_after):
            with bench.loop.open_request(51, params) as request:
                key = request.keep(make_input(1, 2, 3))
                documents = [make_input(*[4] * 16) for _ in range(50)]
                await request.pool(documents, compare_with=[key] * 50)
        await trio.sleep(1)
        await bench.check_nothing_is_held()
        nursery.cancel_scope.cancel()


@BOTH_PLACES
async def test_an_abandoned_request_is_forgotten_within_a_step(
    autojump_clock: trio.testing.MockClock,
    is_remote: bool,
) -> None:
    bench = Bench(is_remote=is_remote)
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.loop.run)
        with bench.loop.open_request(1, EMBED) as request:
            request.keep(make_input(1, 2, 3))
            await trio.sleep(1)
            assert len(bench.device.kept) == 1
            assert bench.loop.statistics().scheduler.num_kept == 1
        await trio.sleep(0.011)
        await bench.check_nothing_is_held()
        nursery.cancel_scope.cancel()


@BOTH_PLACES
async def test_documents_are_compared_with_their_own_query(
    autojump_clock: trio.testing.MockClock,
    is_remote: bool,
) -> None:
    bench = Bench(is_remote=is_remote)
    queries = [make_input(1), make_input(2)]
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.loop.run)
        with bench.loop.open_request(4, EMBED) as request:
            keys = [request.keep(query) for query in queries]
            # The same texts again: each one is the best answer to its own query.
            own = await request.pool(queries, compare_with=keys)
            other = await request.pool(queries, compare_with=keys[::-1])
        assert [read(score)[0] for score in own] == pytest.approx([1, 1])
        assert all(read(score)[0] < 0.999 for score in other)
        nursery.cancel_scope.cancel()


async def test_a_short_request_overtakes_the_rest_of_a_long_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bench = Bench()
    ended: list[str] = []

    async def pool(name: str, inputs: Sequence[PoolingInput]) -> None:
        with bench.loop.open_request(len(inputs), EMBED) as request:
            await request.pool(inputs)
        ended.append(name)

    async with trio.open_nursery() as nursery:
        await nursery.start(bench.loop.run)
        async with trio.open_nursery() as clients:
            clients.start_soon(pool, "library", [make_input(*[1] * 16)] * 50)
            await trio.sleep(0.05)
            began_at = trio.current_time()
            await pool("question", [make_input(1)])
            # The time of the running step, and of the question's own step.
            assert trio.current_time() - began_at <= 2 * 0.026 + 0.001
        assert ended == ["question", "library"]
        nursery.cancel_scope.cancel()


@BOTH_PLACES
async def test_a_failed_step_ends_all_requests(
    autojump_clock: trio.testing.MockClock,
    is_remote: bool,
) -> None:
    bench = Bench(is_remote=is_remote, fail_at_step=1)
    errors: list[Exception] = []

    async def ask() -> None:
        try:
            with bench.loop.open_request(9, EMBED) as request:
                await request.pool([make_input(*[1] * 16)] * 9)
        except EngineDied as error:
            errors.append(error)

    cause = EngineProcessDied if is_remote else RuntimeError
    with pytest.RaisesGroup(cause, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(bench.loop.run)
            async with trio.open_nursery() as clients:
                clients.start_soon(ask)
                clients.start_soon(ask)
    assert len(errors) == 2
    assert not bench.loop.is_alive
    with pytest.raises(EngineDied):
        with bench.loop.open_request(1, EMBED):
            raise AssertionError("there is no loop")


@BOTH_PLACES
async def test_an_open_request_begins_nothing_after_the_end(
    autojump_clock: trio.testing.MockClock,
    is_remote: bool,
) -> None:
    bench = Bench(is_remote=is_remote)
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.loop.run)
        with bench.loop.open_request(2, EMBED) as request:
            await request.pool([make_input(1)])
            bench.loop.close_requests(ShuttingDown())
            with pytest.raises(ShuttingDown):
                await request.pool([make_input(1)])
        nursery.cancel_scope.cancel()


async def test_more_than_there_is_room_for_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bench = Bench(max_num_inputs=10)
    with bench.loop.open_request(6, EMBED):
        with pytest.raises(QueueFull) as caught:
            with bench.loop.open_request(5, EMBED):
                raise AssertionError("it does not fit in")
        assert caught.value.retry_after_seconds == 1
        assert re.match("6 texts .* may add 4 now, .* one has 5;", str(caught.value))
        # No step runs.
        await trio.sleep(1000.0)
        with pytest.raises(QueueFull) as caught:
            with bench.loop.open_request(5, EMBED):
                raise AssertionError("it does not fit in")
        assert caught.value.retry_after_seconds == 60
    with pytest.raises(InvalidParameter, match="at most 10 .* got 11") as refused:
        with bench.loop.open_request(11, EMBED, param="texts"):
            raise AssertionError("it never fits in")
    assert refused.value.param == "texts"
    await bench.check_nothing_is_held()


async def test_a_full_engine_refuses_the_client_that_fills_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bench = Bench(max_num_inputs=10)
    ann, bob = Client(name="ann"), Client(name="bob")
    with bench.loop.open_request(10, EMBED, client=ann):
        for client, num_inputs in ((ann, 1), (bob, 6)):
            with pytest.raises(QueueFull):
                with bench.loop.open_request(num_inputs, EMBED, client=client):
                    raise AssertionError("it does not fit in")
        with bench.loop.open_request(5, EMBED, client=bob):
            assert bench.loop.statistics().num_reserved == 15
    await bench.check_nothing_is_held()


@pytest.mark.parametrize(
    ("each", "error"),
    [
        (make_input(), InvalidParameter),
        (make_input(*[1] * 65), ContextLengthExceeded),
        (make_input(1000), InvalidParameter),
        (make_input(-1), InvalidParameter),
    ],
)
async def test_an_input_that_the_model_cannot_read_is_refused_before_others_wait(
    each: PoolingInput, error: type[Exception]
) -> None:
    bench = Bench()
    with bench.loop.open_request(2, EMBED) as request:
        with pytest.raises(error):
            await request.pool([make_input(1), each])
        with pytest.raises(error):
            request.keep(each)
        assert bench.loop.statistics().scheduler.num_waiting == 0


def test_a_task_that_the_model_does_not_do_is_refused() -> None:
    bench = Bench(task="embed")
    with pytest.raises(TaskNotServed, match="does not classify"):
        with bench.loop.open_request(1, PoolingParams(task="classify")):
            raise AssertionError("it does not classify")


async def test_the_answers_of_a_step_are_spread_over_turns_of_the_event_loop() -> None:
    """Each answer takes half a millisecond of the loop, which has other work, too."""
    bench = Bench(max_num_batched_tokens=1000, max_num_seqs=100)
    most = num_ended = 0

    async def ask() -> None:
        nonlocal num_ended
        with bench.loop.open_request(1, EMBED) as request:
            await request.pool([make_input(1)])
        num_ended += 1

    async with trio.open_nursery() as nursery:
        await nursery.start(bench.loop.run)
        async with trio.open_nursery() as clients:
            for _ in range(100):
                clients.start_soon(ask)
            while num_ended < 100:
                before = num_ended
                await trio.lowlevel.checkpoint()
                most = max(most, num_ended - before)
        assert len(bench.device.plans) == 1
        nursery.cancel_scope.cancel()
    # Two in a turn. The watcher sees four if it runs first in one turn and last in the
    # next one.
    assert 0 < most <= 4
