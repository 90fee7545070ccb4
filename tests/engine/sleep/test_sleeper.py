"""The sleep of an engine in virtual time: idleness, orders, requests that come meanwhile."""

from __future__ import annotations

from array import array

import pytest
import trio
import trio.testing

from trioserve.engine.generation.core import LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.engine.pooling.core import LocalPoolingCore
from trioserve.engine.pooling.engine import TensorEngine
from trioserve.engine.sleep.rules import PAUSE_SECONDS, IdleRule
from trioserve.errors import (
    AdapterNotFound,
    EngineAsleep,
    EngineDied,
    InvalidParameter,
    NotEnoughMemory,
    NotSupported,
)
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.pooling.scheduler import PoolingScheduler
from trioserve.testing.fake_device import (
    FakeDevice,
    FakeExecutor,
    FakeMemory,
    FakePoolingDevice,
    count_up,
    make_info,
    make_pooling_info,
)
from trioserve.testing.processes import HostedCore, HostedPoolingCore
from trioserve.types.pooling import PoolingInput, PoolingParams
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import SamplingParams

BOTH_PLACES = pytest.mark.parametrize(
    "is_remote", [False, True], ids=["here", "in_a_process"]
)
IDLE = IdleRule(seconds=60.0, level=2)


class Bench:
    """An engine over a fake device that loses its blocks with its memory."""

    def __init__(
        self,
        *,
        idle: IdleRule = IdleRule(),
        is_remote: bool = False,
        keeps_states: bool = False,
        fails: Exception | None = None,
        has_memory: bool = True,
        levels: tuple[int, ...] = (1, 2),
    ) -> None:
        self.device = FakeDevice(
            block_size=4,
            reads_blocks=True,
            keeps_states=keeps_states,
            window=8 if not keeps_states else None,
        )
        self.memory = FakeMemory(self.device, fails=fails, levels=levels)  # type: ignore[arg-type]
        self.scheduler = Scheduler(
            num_blocks=256,
            block_size=4,
            max_num_seqs=8,
            max_num_batched_tokens=32,
            max_model_len=64,
            num_checkpoints=8 if keeps_states else None,
            num_window_blocks=None if keeps_states else 256,
            window=None if keeps_states else 8,
            can_recompute=not keeps_states,
        )
        core = LocalCore(
            self.scheduler,
            FakeExecutor(self.device.step, step_seconds=1.0, depth=2),
            info=make_info(),
            memory=self.memory if has_memory else None,
            idle=idle,
        )
        self.engine = TokenEngine(
            HostedCore(core) if is_remote else core,
            info=make_info(),
            max_num_sequences=100,
        )

    @property
    def phase(self) -> str:
        return self.engine.sleep_state.phase

    async def generate(self, max_tokens: int = 5, adapter: str = "") -> int:
        """Generate tokens, check them, and return how many of the prompt were cached."""
        tokens: list[int] = []
        num_cached = 0
        prompt = Prompt(token_ids=tuple(range(13)))
        sampling = SamplingParams(seed=0, max_tokens=max_tokens)
        async with self.engine.open_stream(
            [prompt], sampling, adapter=adapter
        ) as deltas:
            async for delta in deltas:
                tokens += delta.token_ids
                num_cached = delta.num_cached_tokens or num_cached
        assert tokens == [count_up(0, i) for i in range(max_tokens)]
        return num_cached


@BOTH_PLACES
async def test_an_idle_engine_sleeps_and_the_next_request_wakes_it(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, is_remote: bool
) -> None:
    bench = Bench(idle=IDLE, is_remote=is_remote)
    await nursery.start(bench.engine.run)
    await bench.generate(50)
    await trio.sleep(58)
    assert (bench.phase, bench.memory.moves) == ("awake", [])
    # It takes a second; reports of a process come once a second.
    await trio.sleep(5)
    state = bench.engine.sleep_state
    assert (state.phase, state.level, state.is_ordered) == ("asleep", 2, False)
    assert bench.engine.is_alive
    bench.engine.check_room(1)
    # Two requests wake it once.
    async with trio.open_nursery() as both:
        both.start_soon(bench.generate)
        both.start_soon(bench.generate)
        await trio.sleep(2)
        assert bench.phase == "waking"
        assert bench.engine.stalled_seconds() < 2
    assert bench.memory.moves == [2, 0]
    await trio.sleep(1)
    assert bench.engine.sleep_state.level == 0
    assert bench.engine.statistics().scheduler.num_used_blocks == 0
    await trio.sleep(70)
    assert bench.phase == "asleep"


async def test_a_request_that_leaves_during_the_wake_up_changes_nothing(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    bench = Bench(idle=IDLE)
    fresh = bench.engine.statistics()
    await nursery.start(bench.engine.run)
    await trio.sleep(62)
    with trio.move_on_after(2):
        await bench.generate()
    assert bench.phase == "waking"
    assert bench.engine.statistics() == fresh
    await trio.sleep(10)
    assert bench.phase == "awake"
    assert bench.device.plans == []
    await bench.generate()


@BOTH_PLACES
async def test_an_adapter_that_is_gone_after_a_sleep_fails_its_requests_alone(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, is_remote: bool
) -> None:
    bench = Bench(idle=IDLE, is_remote=is_remote)
    fresh = bench.engine.statistics()
    await nursery.start(bench.engine.run)
    await bench.engine.load_adapter("french", "/french")
    gone = await bench.engine.load_adapter("german", "/german")
    bench.memory.lost_adapters.append(gone.facts.number)
    await trio.sleep(65)
    assert bench.phase == "asleep"

    async def fail() -> None:
        with pytest.raises(AdapterNotFound, match="'german'"):
            await bench.generate(adapter="german")

    # They wake the engine.
    async with trio.open_nursery() as requests:
        requests.start_soon(fail)
        requests.start_soon(bench.generate, 5, "french")
    assert list(bench.engine.adapters) == ["french"]
    await trio.sleep(2)
    assert bench.engine.statistics() == fresh


@pytest.mark.parametrize("keeps_states", [False, True])
@pytest.mark.parametrize("level", [1, 2])
async def test_no_block_from_before_a_sleep_is_found(
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
    keeps_states: bool,
    level: int,
) -> None:
    """The device fails if it reads a block that it has lost."""
    bench = Bench(keeps_states=keeps_states)
    await nursery.start(bench.engine.run)
    assert await bench.generate() == 0
    assert await bench.generate() == 12
    await bench.engine.sleep(level, ends_requests=True)  # type: ignore[arg-type]
    assert bench.engine.counters().num_cached_blocks == 0
    await bench.engine.wake()
    assert await bench.generate() == 0
    assert await bench.generate() == 12
    assert bench.engine.counters().num_sampled_tokens == 20
    bench.scheduler.check()


@BOTH_PLACES
async def test_an_order_ends_requests_or_waits_for_them(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, is_remote: bool
) -> None:
    for ends_requests in (True, False):
        bench = Bench(idle=IDLE, is_remote=is_remote)
        async with trio.open_nursery() as running:
            await running.start(bench.engine.run)
            results: list[object] = []

            async def generate() -> None:
                try:
                    results.append(await bench.generate(20))
                except EngineAsleep as error:
                    results.append(error)

            running.start_soon(generate)
            await trio.sleep(5)
            began = trio.current_time()
            order = trio.Event()

            async def sleep() -> None:
                await bench.engine.sleep(1, ends_requests=ends_requests)
                order.set()

            running.start_soon(sleep)
            await trio.sleep(1.5)
            with pytest.raises(EngineAsleep, match="by order of an operator"):
                await bench.generate()
            assert not bench.engine.is_alive
            await order.wait()
            took = trio.current_time() - began
            if ends_requests:
                assert isinstance(results[0], EngineAsleep)
                assert took < 5
            else:
                assert results == [0]
                assert took > 14
            # It does not wake by itself.
            await trio.sleep(100)
            assert bench.memory.moves == [1]
            with pytest.raises(EngineAsleep):
                await bench.generate()
            await bench.engine.wake()
            await bench.generate()
            assert bench.memory.moves == [1, 0]
            running.cancel_scope.cancel()


async def test_orders_deepen_a_sleep_and_the_last_order_counts(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    bench = Bench(idle=IdleRule(seconds=60.0, level=1))
    await nursery.start(bench.engine.run)
    await bench.engine.wake()
    assert bench.memory.moves == []
    await trio.sleep(62)
    assert bench.memory.moves == [1]
    await bench.engine.sleep(2, ends_requests=True)
    await bench.engine.sleep(1, ends_requests=True)
    assert bench.memory.moves == [1, 2]
    with trio.move_on_after(1) as scope:
        await bench.engine.wake()
    # A cancelled call leaves its order, and no engine that is half awake.
    assert scope.cancelled_caught
    await trio.sleep(5)
    assert (bench.phase, bench.memory.moves) == ("awake", [1, 2, 0])
    # An order to wake comes while the core falls asleep.
    async with trio.open_nursery() as both:
        both.start_soon(lambda: bench.engine.sleep(1, ends_requests=True))
        await trio.sleep(0.5)
        await bench.engine.wake()
    assert (bench.phase, bench.memory.moves) == ("awake", [1, 2, 0, 1, 0])
    bench.memory.moves.clear()
    # The order to sleep comes during a wake-up: the core wakes, and sleeps again.
    await bench.engine.sleep(2, ends_requests=True)
    nursery.start_soon(bench.engine.wake)
    await trio.sleep(1)
    assert bench.phase == "waking"
    await bench.engine.sleep(1, ends_requests=True)
    assert bench.memory.moves == [2, 0, 1]


async def test_levels_that_a_model_does_not_have_are_refused(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    bench = Bench(levels=(2,))
    await nursery.start(bench.engine.run)
    with pytest.raises(InvalidParameter, match="use level=2"):
        await bench.engine.sleep(1, ends_requests=True)
    none = Bench(has_memory=False)
    await nursery.start(none.engine.run)
    with pytest.raises(
        NotSupported, match="sleep is not supported by this server: torchrun"
    ):
        await none.engine.sleep(2, ends_requests=True)


@BOTH_PLACES
async def test_a_lack_of_memory_fails_requests_and_not_the_engine(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, is_remote: bool
) -> None:
    bench = Bench(idle=IDLE, is_remote=is_remote)
    fresh = bench.engine.statistics()
    await nursery.start(bench.engine.run)
    await trio.sleep(65)
    bench.memory.fails = NotEnoughMemory("out of memory")

    async def fail() -> None:
        with pytest.raises(EngineAsleep, match="could not wake: .* out of memory"):
            await bench.generate()

    async with trio.open_nursery() as both:
        both.start_soon(fail)
        both.start_soon(fail)
    assert bench.phase == "asleep"
    assert not bench.engine.is_alive
    # Nothing is tried for some seconds, and then only for a request.
    began = trio.current_time()
    await fail()
    assert trio.current_time() == began
    await trio.sleep(PAUSE_SECONDS + 10)
    assert bench.engine.is_alive
    assert bench.phase == "asleep"
    assert bench.engine.statistics() == fresh
    # An operator is told at once, and may try again at once.
    for _ in range(2):
        with pytest.raises(EngineAsleep, match="out of memory"):
            await bench.engine.wake()
        with pytest.raises(EngineAsleep, match="out of memory"):
            await bench.engine.load_adapter("french", "/french")
    bench.memory.fails = None
    await bench.engine.wake()
    await bench.generate()
    assert bench.memory.moves == [2, 0]


@BOTH_PLACES
async def test_an_engine_that_cannot_wake_fails(
    autojump_clock: trio.testing.MockClock, is_remote: bool
) -> None:
    bench = Bench(fails=RuntimeError("of another kind"), is_remote=is_remote)
    with pytest.RaisesGroup(Exception, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(bench.engine.run)
            await bench.engine.sleep(2, ends_requests=True)
            with pytest.raises(EngineDied):
                await bench.engine.wake()
    with pytest.raises(EngineDied):
        bench.engine.check_alive()


@BOTH_PLACES
async def test_a_pooling_engine_stays_awake_for_open_requests(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, is_remote: bool
) -> None:
    device, memory = FakePoolingDevice(), FakeMemory(levels=(2,))
    core = LocalPoolingCore(
        PoolingScheduler(max_num_seqs=8, max_num_batched_tokens=64),
        FakeExecutor(device.step, step_seconds=1.0),
        memory=memory,
        idle=IDLE,
    )
    engine = TensorEngine(
        HostedPoolingCore(core) if is_remote else core,
        info=make_info(64, vocab_size=1000),
        pooling=make_pooling_info("embed"),
        max_num_inputs=100,
    )
    await nursery.start(engine.run)
    params = PoolingParams(task="embed")
    text = PoolingInput(token_ids=array("i", [1, 2, 3]))
    with engine.open_request(2, params) as request:
        assert len(await request.pool([text])) == 1
        await trio.sleep(100)
        assert memory.moves == []
    await trio.sleep(70)
    assert memory.moves == [2]
    with engine.open_request(1, params) as request:
        assert len(await request.pool([text])) == 1
    assert memory.moves == [2, 0]
