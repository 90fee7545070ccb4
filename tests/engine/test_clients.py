"""Several engines on one core: each gets its own outputs, and leaves nothing when it is gone."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trioserve.engine.generation.core import LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.engine.pooling.core import LocalPoolingCore
from trioserve.engine.pooling.engine import TensorEngine
from trioserve.engine.process.core_server import CoreHost
from trioserve.engine.process.messages import FromEngine, ToEngine, find_first_id
from trioserve.engine.process.remote import RemoteCore, RemotePoolingCore
from trioserve.errors import EngineDied, QueueFull, ShuttingDown
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.pooling.scheduler import PoolingScheduler
from trioserve.testing.fake_device import (
    FakeDevice,
    FakeExecutor,
    FakePoolingDevice,
    make_info,
    make_pooling_info,
)
from trioserve.testing.processes import open_streams
from trioserve.types.client import Client
from trioserve.types.pooling import PoolingInput, PoolingParams
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import SamplingParams

INFO = make_info()


def make_core(max_num_seqs: int = 8, fail_at_step: int | None = None) -> LocalCore:
    scheduler = Scheduler(
        num_blocks=256,
        block_size=4,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=32,
        max_model_len=64,
    )
    executor: Any = FakeExecutor(
        FakeDevice(block_size=4).step, step_seconds=1.0, fail_at_step=fail_at_step
    )
    return LocalCore(scheduler, executor, info=INFO)


def make_token_engine(
    stream: Any, number: int, max_num_seqs: int = 8, max_num_sequences: int = 100
) -> TokenEngine:
    return TokenEngine(
        RemoteCore(stream, describe_end),
        info=INFO,
        max_num_sequences=max_num_sequences,
        max_num_running=max_num_seqs,
        first_id=find_first_id(number),
    )


async def describe_end() -> str:
    await trio.lowlevel.checkpoint()
    return "the core has gone"


@dataclass
class Front:
    """An engine, and its end of the connection."""

    engine: Any
    close: Callable[[], None]
    scope: trio.CancelScope


@asynccontextmanager
async def open_client(
    host: Any, number: int, make: Callable[..., Any], **options: Any
) -> AsyncIterator[Front]:
    with open_streams(ours=FromEngine, theirs=ToEngine) as (near, far):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(far.run)  # noqa: ASYNC113 (messages wait in the socket)
            nursery.start_soon(host.serve, number, far)  # noqa: ASYNC113
            engine, scope = make(near, number, **options), trio.CancelScope()
            await nursery.start(run_engine, engine, scope)
            yield Front(engine, near.close, scope)
            nursery.cancel_scope.cancel()


async def run_engine(  # noqa: ASYNC128 (the engine calls started)
    engine: Any,
    scope: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    with scope:
        await engine.run(task_status=task_status)


@asynccontextmanager
async def open_host(host: Any) -> AsyncIterator[Any]:
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run)
        yield host
        nursery.cancel_scope.cancel()


PROMPT = Prompt(token_ids=(1, 2, 3, 4, 5))


async def read(
    engine: TokenEngine, max_tokens: int, seed: int, client: Client = Client()
) -> list[int]:
    sampling = SamplingParams(max_tokens=max_tokens, seed=seed, ignore_eos=True)
    async with engine.open_stream([PROMPT], sampling, client=client) as stream:
        return [token async for delta in stream for token in delta.token_ids]


async def lose(call: Callable[..., Any], *arguments: Any) -> None:
    """Make a request of an engine whose process will be killed."""
    with pytest.raises(ShuttingDown):
        await call(*arguments)


async def test_each_engine_gets_its_own_outputs(autojump_clock: MockClock) -> None:
    core, seen = make_core(), {}

    async def note(engine: TokenEngine, seed: int) -> None:
        seen[seed] = await read(engine, 6, seed)

    async with (
        open_host(CoreHost(core)) as host,
        open_client(host, 0, make_token_engine) as first,
        open_client(host, 1, make_token_engine) as second,
    ):
        async with trio.open_nursery() as nursery:
            for seed in range(6):
                engine = (first, second)[seed % 2].engine
                nursery.start_soon(note, engine, seed)
        alone = await read(first.engine, 6, 3)
    assert {len(each) for each in seen.values()} == {6}
    assert seen[3] == alone and seen[2] != alone


async def test_a_client_that_is_gone_leaves_nothing_and_disturbs_nobody(
    autojump_clock: MockClock,
) -> None:
    core = make_core()
    fresh = core.statistics()
    async with (
        open_host(CoreHost(core)) as host,
        open_client(host, 0, make_token_engine) as first,
    ):
        async with open_client(host, 1, make_token_engine) as second:
            async with trio.open_nursery() as nursery:
                for seed in range(3):
                    nursery.start_soon(lose, read, second.engine, 50, seed)
                nursery.start_soon(read, first.engine, 20, 7)
                await trio.sleep(5)
                assert core.statistics().num_running == 4
                # As if the process had been killed.
                second.scope.cancel()
                await wait_all_tasks_blocked()
                second.close()
                await trio.sleep(2)
                assert core.statistics().num_running == 1
                assert core.statistics().num_waiting == 0
                nursery.cancel_scope.cancel()
        assert len(await read(first.engine, 5, 1)) == 5
        assert core.statistics() == fresh
        # A successor has numbers of its own.
        async with open_client(host, 2, make_token_engine) as third:
            assert len(await read(third.engine, 5, 1)) == 5


async def test_an_engine_sees_only_its_own_work_in_the_core(
    autojump_clock: MockClock,
) -> None:
    async with (
        open_host(CoreHost(make_core())) as host,
        open_client(host, 0, make_token_engine) as first,
        open_client(host, 1, make_token_engine) as second,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(read, second.engine, 50, 1)
        await trio.sleep(3)
        for each in (first, second):
            assert (await each.engine.audit()).leaks == ()
        nursery.cancel_scope.cancel()


async def test_the_first_of_equals_goes_first_whichever_engine_has_it(
    autojump_clock: MockClock,
) -> None:
    """The numbers of an engine that started later are higher."""
    order = []

    async def note(engine: TokenEngine, name: str) -> None:
        await read(engine, 4, 1)
        order.append(name)

    async with (
        open_host(CoreHost(make_core(max_num_seqs=1))) as host,
        open_client(host, 0, make_token_engine) as first,
        open_client(host, 1, make_token_engine) as second,
        trio.open_nursery() as nursery,
    ):
        for engine, name in (
            (second.engine, "a"),
            (first.engine, "b"),
            (second.engine, "c"),
        ):
            nursery.start_soon(note, engine, name)
            await wait_all_tasks_blocked()
    assert order == ["a", "b", "c"]


async def test_a_client_has_one_share_in_all_engines(autojump_clock: MockClock) -> None:
    """Two clients share two slots, though one of them asks two engines."""
    ends: dict[str, list[float]] = {"ann": [], "bob": []}

    async def note(engine: TokenEngine, name: str, seed: int) -> None:
        await read(engine, 8, seed, Client(name=name))
        ends[name].append(trio.current_time())

    async with (
        open_host(CoreHost(make_core(max_num_seqs=2))) as host,
        open_client(host, 0, make_token_engine) as first,
        open_client(host, 1, make_token_engine) as second,
        trio.open_nursery() as nursery,
    ):
        for seed in range(4):
            engine = (first, second)[seed % 2].engine
            nursery.start_soon(note, engine, "ann", seed)
        await wait_all_tasks_blocked()
        for seed in range(2):
            nursery.start_soon(note, second.engine, "bob", seed)
    # With three shares instead of two, bob's second answer would end behind ann's third.
    assert ends["bob"][1] <= ends["ann"][2]


async def test_admission_counts_the_work_of_peers(autojump_clock: MockClock) -> None:
    options = {"max_num_seqs": 1, "max_num_sequences": 4}
    async with (
        open_host(CoreHost(make_core(max_num_seqs=1))) as host,
        open_client(host, 0, make_token_engine, **options) as first,
        open_client(host, 1, make_token_engine, **options) as second,
    ):
        fresh = second.engine.statistics()
        async with trio.open_nursery() as nursery:
            for seed in range(4):
                nursery.start_soon(read, first.engine, 50, seed)
            await wait_all_tasks_blocked()
            second.engine.check_room(1)
            work = first.engine.describe_work()
            assert [each.num_places for each in work.clients] == [4]
            second.engine.set_peer(0, work)
            with pytest.raises(QueueFull, match="4"):
                second.engine.check_room(1)
            # It tells its own work alone.
            assert second.engine.describe_work().clients == ()
            nursery.cancel_scope.cancel()
        second.engine.set_peer(0, first.engine.describe_work())
        second.engine.check_room(1)
        second.engine.set_peer(0, None)
        assert second.engine.statistics() == fresh


async def test_a_failed_step_ends_all_engines(autojump_clock: MockClock) -> None:
    core = make_core(fail_at_step=2)
    with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
        async with (
            open_host(CoreHost(core)) as host,
            open_client(host, 0, make_token_engine) as first,
        ):
            with pytest.raises(EngineDied):
                await read(first.engine, 50, 1)


def make_tensor_engine(stream: Any, number: int) -> TensorEngine:
    return TensorEngine(
        RemotePoolingCore(stream, describe_end),
        info=INFO,
        pooling=make_pooling_info("embed"),
        max_num_inputs=100,
        first_id=find_first_id(number),
    )


async def test_engines_that_pool_share_a_core(autojump_clock: MockClock) -> None:
    scheduler = PoolingScheduler(max_num_seqs=2, max_num_batched_tokens=16)
    device = FakePoolingDevice(8)
    core = LocalPoolingCore(scheduler, FakeExecutor(device.step, step_seconds=1.0))
    fresh = core.statistics()
    params = PoolingParams(task="embed")

    async def pool(engine: TensorEngine, first: int) -> list[Any]:
        inputs = [
            PoolingInput(token_ids=array("i", [first, each])) for each in range(1, 6)
        ]
        with engine.open_request(5, params) as request:
            request.keep(inputs[0])
            return await request.pool(inputs)

    async with (
        open_host(CoreHost(core)) as host,
        open_client(host, 0, make_tensor_engine) as first,
    ):
        async with open_client(host, 1, make_tensor_engine) as second:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pool, second.engine, 2)
                results = await pool(first.engine, 1)
                assert results != await pool(second.engine, 2)
                nursery.start_soon(lose, pool, second.engine, 3)
                await trio.sleep(1.5)
                assert second.engine.describe_work().clients[0].num_places == 5
                second.scope.cancel()
                await wait_all_tasks_blocked()
                second.close()
                nursery.cancel_scope.cancel()
        assert await pool(first.engine, 1) == results
        await trio.sleep(5)
        assert core.statistics() == fresh
        assert (await core.inspect(lost=True)).work == ()
