"""The engine in virtual time: batching, fairness, preemption, cancellation, failure."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
import random
import tracemalloc
from typing import Any

import pytest
import trio
import trio.testing

from trioserve.engine.generation.core import GenerationCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.errors import (
    ContextLengthExceeded,
    EngineDied,
    EngineProcessDied,
    EngineRestarting,
    InvalidParameter,
    QueueFull,
    ShuttingDown,
)
from trioserve.testing.fake_device import FakeDevice, count_up
from trioserve.types.client import Client
from trioserve.types.prompt import KEY_BYTES, NO_TOKEN, EmbeddedInput, Prompt
from trioserve.types.sampling import SamplingParams
from trioserve.types.tensors import TensorBytes

MakeEngine = Callable[..., TokenEngine]
TEN = SamplingParams(seed=0, max_tokens=10)

# Where the ends of requests, of steps and of cores may differ. Other tests run in one way.
EVERY_WAY = pytest.mark.parametrize(
    ("depth", "is_remote"),
    [(depth, is_remote) for depth in (1, 2) for is_remote in (False, True)],
    indirect=True,
)


def prompt_of(length: int, first: int = 0) -> Prompt:
    return Prompt(token_ids=tuple(range(first, first + length)))


async def collect(
    engine: TokenEngine,
    *prompts: Prompt,
    priority: int = 0,
    **sampling: object,
) -> list[list[int]]:
    """Return the tokens of each sequence."""
    params = SamplingParams(**({"seed": 0, "max_tokens": 5} | sampling))  # type: ignore
    tokens: list[list[int]] = [[] for _ in range(len(prompts) * params.n)]
    async with engine.open_stream(prompts, params, priority=priority) as deltas:
        async for delta in deltas:
            tokens[delta.index] += delta.token_ids
    return tokens


@EVERY_WAY
async def test_a_stream_gives_its_tokens_and_ends(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    engine = make_engine()
    await nursery.start(engine.run)
    async with engine.open_stream(
        [prompt_of(3)], SamplingParams(seed=7, max_tokens=3)
    ) as deltas:
        got = [delta async for delta in deltas]
    assert [token for delta in got for token in delta.token_ids] == [
        count_up(7, i) for i in range(3)
    ]
    assert [delta.finish_reason for delta in got] == [None, None, "length"]
    assert engine.statistics() == make_engine().statistics()


@EVERY_WAY
async def test_a_stream_reports_its_phase(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    # There is a place for one sequence, and its prompt takes two steps.
    engine = make_engine(max_num_seqs=1, max_num_batched_tokens=4, step_seconds=1.0)
    await nursery.start(engine.run)
    params = SamplingParams(seed=0, max_tokens=5)
    async with (
        engine.open_stream([prompt_of(6)], params) as first,
        engine.open_stream([prompt_of(6, 100)], params) as second,
    ):
        seen = []
        for time in (0.5, 1.5, 2.5, 5.5, 7.5, 8.5):
            await trio.sleep_until(time)
            seen.append((first.phase, second.phase))
            assert (second.started_at is None) == (second.phase == "queue")
        assert (first.started_at, second.started_at) == (0.0, 6.0)
        # No delta is empty.
        deltas = [delta async for delta in second]
    assert seen == [
        ("prefill", "queue"),
        ("prefill", "queue"),
        ("decode", "queue"),
        ("decode", "queue"),
        ("decode", "prefill"),
        ("decode", "decode"),
    ]
    assert all(delta.token_ids for delta in deltas)


@EVERY_WAY
async def test_a_newcomer_joins_the_next_step_that_is_planned(
    make_engine: MakeEngine,
    nursery: trio.Nursery,
    autojump_clock: trio.abc.Clock,
    depth: int,
) -> None:
    engine = make_engine(step_seconds=1.0)
    await nursery.start(engine.run)
    nursery.start_soon(lambda: collect(engine, prompt_of(4), max_tokens=20))
    await trio.sleep(2.5)
    await collect(engine, prompt_of(4, 100), max_tokens=1)
    # Step 3 is on the device, and with two steps in flight step 4 is ready, too.
    assert trio.current_time() == 3.0 + depth


async def test_sequences_of_one_request_have_their_own_index_and_seed(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    engine = make_engine()
    await nursery.start(engine.run)
    tokens = await collect(engine, prompt_of(3), prompt_of(4, 50), n=2, seed=9)
    assert tokens == [[count_up(9 + k, i) for i in range(5)] for k in (0, 1, 0, 1)]


async def test_without_a_seed_two_requests_differ(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    engine = make_engine()
    await nursery.start(engine.run)
    runs = [await collect(engine, prompt_of(3), seed=None) for _ in range(3)]
    assert any(run != runs[0] for run in runs[1:])


async def test_a_higher_priority_is_admitted_first(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    engine = make_engine(max_num_seqs=1, scheduling_policy="priority")
    await nursery.start(engine.run)
    ended = []

    async def run(priority: int) -> None:
        await collect(engine, prompt_of(3), priority=priority)
        ended.append(priority)

    async with trio.open_nursery() as streams:
        streams.start_soon(run, 0)
        await trio.testing.wait_all_tasks_blocked()
        for priority in (3, 1, 2):
            streams.start_soon(run, priority)
    assert ended == [0, 1, 2, 3]


@EVERY_WAY
async def test_leaving_the_block_frees_the_blocks_at_once(
    make_engine: MakeEngine,
    nursery: trio.Nursery,
    autojump_clock: trio.abc.Clock,
    depth: int,
) -> None:
    engine = make_engine(step_seconds=1.0)
    await nursery.start(engine.run)
    with trio.move_on_after(2.5):
        await collect(engine, prompt_of(8), max_tokens=50)
    await trio.testing.wait_all_tasks_blocked()
    # Step 3 still writes to the freed blocks, but before their next owner does.
    held = engine.statistics().scheduler
    assert (held.num_used_blocks, held.num_running) == (0, 0)
    assert held.num_steps_in_flight == depth
    await trio.sleep(depth)
    assert engine.statistics() == make_engine().statistics()


@EVERY_WAY
async def test_40_streams_dropped_at_random_leave_a_fresh_engine(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    engine = make_engine(num_blocks=48, token_seconds=0.001)
    await nursery.start(engine.run)
    rng = random.Random(5)

    async def run(delay: float, patience: float, first: int) -> None:
        await trio.sleep(delay)
        with trio.move_on_after(patience):
            await collect(
                engine, prompt_of(rng.randint(1, 30), first), max_tokens=30, n=2
            )

    async with trio.open_nursery() as streams:
        for number in range(40):
            delay, patience = rng.uniform(0, 3), rng.expovariate(1.0)
            streams.start_soon(run, delay, patience, number)
    await trio.sleep(1)
    assert engine.statistics() == make_engine(num_blocks=48).statistics()


async def test_a_slow_reader_gets_the_gathered_tokens_in_one_delta(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    engine = make_engine(step_seconds=1.0)
    await nursery.start(engine.run)
    params = SamplingParams(max_tokens=10, seed=0)
    async with engine.open_stream([prompt_of(3)], params) as deltas:
        await trio.sleep(4.5)
        lengths = [len(delta.token_ids) async for delta in deltas]
    assert lengths == [4, 1, 1, 1, 1, 1, 1]


async def test_stopping_one_sequence_leaves_its_siblings(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    engine = make_engine()
    await nursery.start(engine.run)
    tokens: list[list[int]] = [[], []]
    params = SamplingParams(n=2, max_tokens=6, seed=0)
    async with engine.open_stream([prompt_of(3)], params) as deltas:
        async for delta in deltas:
            tokens[delta.index] += delta.token_ids
            if len(tokens[0]) == 2:
                deltas.stop(0, is_complete=True)
    assert list(map(len, tokens)) == [2, 6]
    # The core has learned of it.
    assert engine.counters().num_sampled_tokens < 2 * 6


@EVERY_WAY
async def test_a_failing_step_ends_every_stream_and_the_loop(
    make_engine: MakeEngine,
    autojump_clock: trio.abc.Clock,
    is_remote: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = make_engine(fail_at_step=3)
    died = []
    # Another process reports the cause only in its own log.
    cause = pytest.RaisesExc(
        EngineProcessDied if is_remote else RuntimeError,
        match="gone" if is_remote else "broken",
    )

    async def read(first: int) -> None:
        with pytest.raises(EngineDied):
            await collect(engine, prompt_of(3, first), max_tokens=50)
        died.append(first)

    with pytest.RaisesGroup(cause, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            nursery.start_soon(read, 0)
            nursery.start_soon(read, 100)
    assert sorted(died) == [0, 100]
    assert not engine.is_alive
    [record] = [each for each in caplog.records if "the engine failed" in each.message]
    assert (record.exc_info is None) == is_remote
    assert ("has gone" in record.message) == is_remote
    with pytest.raises(EngineDied):
        await collect(engine, prompt_of(1))


@EVERY_WAY
async def test_a_cancelled_engine_tells_its_streams_that_it_stops(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    engine = make_engine()
    has_failed = trio.Event()

    async def read() -> None:
        with pytest.raises(ShuttingDown):
            await collect(engine, prompt_of(3), max_tokens=50)
        has_failed.set()

    async with trio.open_nursery() as host:
        await host.start(engine.run)
        nursery.start_soon(read)
        await trio.sleep(0.1)
        host.cancel_scope.cancel()
    await has_failed.wait()


async def test_a_refusal_says_when_the_waiting_requests_will_be_done(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """A sequence takes two seconds, and twenty sequences wait."""
    engine = make_engine(max_num_seqs=1, max_queued_requests=20, step_seconds=0.4)
    await nursery.start(engine.run)
    async with trio.open_nursery() as streams:
        for _ in range(21):
            streams.start_soon(collect, engine, prompt_of(3))
        await trio.sleep(10.2)
        for _ in range(5):
            streams.start_soon(collect, engine, prompt_of(3))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(QueueFull) as caught:
            engine.check_room(1)
        streams.cancel_scope.cancel()
    assert caught.value.retry_after_seconds == pytest.approx(40, abs=5)


async def test_large_requests_leave_places_to_small_ones(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """Each large request takes at most half of the free places."""
    engine = make_engine(max_num_seqs=8, max_queued_requests=92)
    await nursery.start(engine.run)
    num_refused = 0

    async def ask(num_prompts: int) -> None:
        nonlocal num_refused
        try:
            await collect(engine, *[prompt_of(2)] * num_prompts, max_tokens=50)
        except QueueFull:
            num_refused += 1

    for _ in range(20):
        nursery.start_soon(ask, 16)
        await trio.testing.wait_all_tasks_blocked()
    # Five fit: 16 of 100 places, of 84, of 68, of 52 and of 36.
    assert num_refused == 15
    with pytest.raises(QueueFull, match="^80 seq.* may add 10 now, .* one has 16;"):
        engine.check_room(16)
    for _ in range(20):
        nursery.start_soon(ask, 1)
        await trio.testing.wait_all_tasks_blocked()
    assert num_refused == 15


async def test_tokens_that_wait_are_those_of_the_client_that_fills_the_bound(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    engine = make_engine(max_num_seqs=1, max_queued_tokens=60)
    ann, bob = Client(name="ann"), Client(name="bob")
    await nursery.start(engine.run)
    async with AsyncExitStack() as streams:
        for _ in range(3):
            await streams.enter_async_context(
                engine.open_stream([prompt_of(20)], TEN, client=ann)
            )
        with pytest.raises(QueueFull, match="60 prompt tokens.* may add 0 now"):
            engine.check_room(1, 1, ann)
        # A prompt may be longer than the share of its client, of which nothing waits.
        engine.check_room(1, 50, bob)
        await streams.enter_async_context(
            engine.open_stream([prompt_of(20)], TEN, client=bob)
        )
        engine.check_room(1, 10, bob)
        with pytest.raises(QueueFull, match="80 prompt tokens.* may add 10 now"):
            engine.check_room(1, 11, bob)
        with pytest.raises(QueueFull):
            engine.check_room(1, 1)


@pytest.mark.parametrize(("num_queued", "most"), [(92, 50), (0, 8)])
async def test_a_request_has_half_of_all_places_or_those_that_run_at_once(
    make_engine: MakeEngine, num_queued: int, most: int
) -> None:
    await trio.lowlevel.checkpoint()
    engine = make_engine(max_num_seqs=8, max_queued_requests=num_queued)
    engine.check_room(most)
    with pytest.raises(InvalidParameter, match=f"at most {most}") as caught:
        engine.check_room(most + 1)
    assert caught.value.param == "n"


@pytest.mark.parametrize(
    ("length", "sampling", "error", "param"),
    [
        (64, {}, ContextLengthExceeded, "prompt"),
        (3, {"priority": -1}, InvalidParameter, "priority"),
        (3, {"n": 100}, InvalidParameter, "n"),
    ],
)
async def test_a_prompt_that_cannot_be_computed_is_refused_at_the_door(
    make_engine: MakeEngine,
    nursery: trio.Nursery,
    length: int,
    sampling: dict[str, Any],
    error: type[Exception],
    param: str,
) -> None:
    engine = make_engine(max_queued_requests=8)
    await nursery.start(engine.run)
    with pytest.raises(error) as caught:
        await collect(engine, prompt_of(length), **sampling)
    assert caught.value.param == param  # type: ignore[attr-defined]
    assert engine.statistics() == make_engine().statistics()


@EVERY_WAY
async def test_a_long_prompt_is_hashed_before_it_waits(
    make_engine: Callable[..., TokenEngine],
) -> None:
    """A thread hashes it, and cancelling that leaves nothing behind."""
    # One step computes all of it, which takes real seconds here.
    engine = make_engine(
        num_blocks=4096, max_model_len=16_000, max_num_batched_tokens=8000
    )
    prompt = Prompt(token_ids=tuple(range(1000)) * 8)
    fresh = engine.statistics()
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        with trio.CancelScope() as scope:
            scope.cancel()
            async with engine.open_stream([prompt], SamplingParams(max_tokens=1)):
                raise AssertionError("it was cancelled before")
        assert scope.cancelled_caught
        assert engine.statistics() == fresh
        async with engine.open_stream([prompt], SamplingParams(max_tokens=1)) as stream:
            assert len([delta async for delta in stream]) == 1
        nursery.cancel_scope.cancel()


@EVERY_WAY
async def test_an_engine_that_ends_during_the_hashing_takes_no_prompt(
    make_engine: Callable[..., TokenEngine],
) -> None:
    engine = make_engine(num_blocks=4096, max_model_len=16_000)
    prompt = Prompt(token_ids=tuple(range(1000)) * 8)

    async def ask() -> None:
        with pytest.raises(ShuttingDown):
            async with engine.open_stream([prompt], SamplingParams(max_tokens=1)):
                raise AssertionError("there is no loop")

    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        async with trio.open_nursery() as asking:
            asking.start_soon(ask)
            while not engine.statistics().num_streams:
                await trio.lowlevel.checkpoint()
            engine.close_requests(ShuttingDown())
        nursery.cancel_scope.cancel()


@EVERY_WAY
async def test_an_idle_device_forgets_vectors(
    make_engine: Callable[..., TokenEngine], autojump_clock: trio.testing.MockClock
) -> None:
    """A client leaves in the middle of its prompt, and no other request comes."""
    device = FakeDevice(block_size=4)
    engine = make_engine(device=device, max_num_batched_tokens=8)
    prompt = Prompt(
        token_ids=(NO_TOKEN,) * 30,
        embedded=(
            EmbeddedInput(
                kind="embeds",
                runs=((0, 30),),
                keys=bytes(30 * KEY_BYTES),
                tensors={
                    "embeds": TensorBytes(
                        data=b"", dtype="float32", shape=(30, engine.info.hidden_size)
                    )
                },
            ),
        ),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        with trio.move_on_after(0.015):
            async with engine.open_stream([prompt], SamplingParams()) as stream:
                await anext(stream)
        await trio.sleep(1)
        ends = [plan.ends for plan in device.plans if plan.ends]
        assert len(ends) == 1
        nursery.cancel_scope.cancel()


async def test_far_too_many_sequences_are_refused_before_they_are_made(
    make_engine: Callable[..., TokenEngine],
) -> None:
    """A hundred thousand sequences would take seconds and hundreds of MB to make."""
    engine = make_engine()
    prompts = [Prompt(token_ids=(1,))] * 1024
    tracemalloc.start()
    try:
        with pytest.raises(InvalidParameter):
            async with engine.open_stream(prompts, SamplingParams(n=128)):
                raise AssertionError("it was refused")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


@EVERY_WAY
async def test_an_engine_may_start_again(
    make_engine: MakeEngine,
    make_core: Callable[..., GenerationCore],
    nursery: trio.Nursery,
    autojump_clock: trio.abc.Clock,
) -> None:
    """Open streams fail, new ones are refused for a while, and then all is as new."""
    loading = trio.Event()

    async def reopen() -> GenerationCore:
        loading.set()
        await trio.sleep(100)
        return make_core()

    engine = make_engine(fail_at_step=3, reopen=reopen)
    await nursery.start(engine.run)
    with pytest.raises(EngineRestarting):
        await collect(engine, prompt_of(3), max_tokens=50)
    await loading.wait()
    assert not engine.is_alive
    with pytest.raises(EngineRestarting):
        await collect(engine, prompt_of(3))
    await trio.sleep(101)
    assert await collect(engine, prompt_of(3)) == [[count_up(0, i) for i in range(5)]]
    await trio.testing.wait_all_tasks_blocked()
    assert engine.statistics() == make_engine().statistics()


async def test_an_engine_that_always_fails_gives_up(
    make_engine: MakeEngine,
    make_core: Callable[..., GenerationCore],
    autojump_clock: trio.abc.Clock,
) -> None:
    num_opened = 0

    async def reopen() -> GenerationCore:
        nonlocal num_opened
        num_opened += 1
        await trio.sleep(1)
        return make_core(fail_at_step=1)

    engine = make_engine(fail_at_step=1, reopen=reopen)
    with pytest.RaisesGroup(Exception, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            for _ in range(4):
                with pytest.raises((EngineRestarting, EngineDied)):
                    await collect(engine, prompt_of(3))
                await trio.sleep(2)
    assert num_opened == 3
    assert not engine.is_alive
