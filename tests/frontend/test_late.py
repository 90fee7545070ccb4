"""Requests that would be late are refused at once, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
import math
from pathlib import Path
import random

import pytest
import trio
import trio.testing

from trioserve.config import RenderConfig
from trioserve.engine.backlog import Forecast
from trioserve.engine.generation.core import LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.engine.generation.forecast import Demand
from trioserve.errors import DeadlineUnreachable, TrioserveError
from trioserve.frontend import StreamLimits, TextEngine, TextParams
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.testing.fake_device import FakeDevice, FakeExecutor, make_info
from trioserve.testing.renderers import load_renderer
from trioserve.types.client import Client
from trioserve.types.plan import StepPlan
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import SamplingParams

END = 1
NUM_PROMPT = 60
NUM_OUTPUT = 16

MakeEngine = Callable[..., TextEngine]


def seconds_of(plan: StepPlan) -> float:
    """Return ten times the seconds of SmolLM2-135M on two cores."""
    contexts = sum(row.start for row in plan.rows)
    return 0.2 + 0.01 * len(plan.rows) + 0.006 * plan.num_tokens + 3e-5 * contexts


@pytest.fixture
def make_engine(tokenizer_folder: Path) -> MakeEngine:
    """Return a function that makes an engine; its answers have NUM_OUTPUT tokens."""

    def make(num_slots: int = 8, slow_from: float = math.inf) -> TextEngine:
        info = replace(make_info(8192), eos_token_ids=frozenset([END]))
        device = FakeDevice(lambda _, index: END if index + 1 >= NUM_OUTPUT else 5)
        scheduler = Scheduler(
            num_blocks=20_000,
            block_size=16,
            max_num_seqs=num_slots,
            max_num_batched_tokens=512,
            max_model_len=8192,
            max_step_seconds=2.5,
        )

        def time_step(plan: StepPlan) -> float:
            is_slow = trio.current_time() >= slow_from
            return (3.0 if is_slow else 1.0) * seconds_of(plan)

        executor = FakeExecutor(device.step, seconds_of=time_step, depth=2)
        engine = TokenEngine(
            LocalCore(scheduler, executor, info=info),
            info=info,
            max_num_sequences=10_000,
            max_num_running=num_slots,
        )
        return TextEngine(
            engine, load_renderer(tokenizer_folder, RenderConfig(), info=info)
        )

    return make


@dataclass(kw_only=True)
class Clients:
    """Clients of one engine, whose prompts differ behind a prefix."""

    engine: TextEngine
    client: Client = Client()
    prefix: tuple[int, ...] = ()
    num_asked: int = 0

    async def ask(
        self, limits: StreamLimits = StreamLimits(), num_prompt: int = NUM_PROMPT
    ) -> float:
        """Ask once; return the seconds until the answer is complete.

        Raises:
          DeadlineUnreachable
          TimeoutError: it is late.
        """
        begin = trio.current_time()
        self.num_asked += 1
        chance = random.Random(self.num_asked)
        ids = self.prefix + tuple(chance.randrange(5, 500) for _ in range(num_prompt))
        async with self.engine.open_text(
            [Prompt(token_ids=ids)],
            SamplingParams(max_tokens=1000),
            TextParams(),
            limits=limits,
            client=self.client,
        ) as stream:
            async for delta in stream:
                if delta.finish_reason == "deadline":
                    raise TimeoutError
        return trio.current_time() - begin

    async def ask_many(self, number: int) -> None:
        """Ask often, and wait for all answers."""
        async with trio.open_nursery() as nursery:
            for _ in range(number):
                nursery.start_soon(self.ask)

    async def keep_asking(self, nursery: trio.Nursery, number: int = 1) -> None:
        """Have requests that wait, or run."""
        for _ in range(number):
            nursery.start_soon(self.ask)
        await trio.testing.wait_all_tasks_blocked()

    def forecast(self, num_prompt: int = NUM_PROMPT) -> Forecast:
        demand = Demand(
            num_prompt_tokens=num_prompt, max_tokens=1000, client=self.client
        )
        forecast = self.engine.engine.forecast(demand)
        assert forecast is not None
        return forecast


def run_virtually(run: Callable[[], Awaitable[None]]) -> None:
    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.fixture
async def clients(make_engine: MakeEngine, nursery: trio.Nursery) -> Clients:
    """Clients of an engine that has answered a few requests."""
    engine = make_engine()
    await nursery.start(engine.engine.run)
    clients = Clients(engine=engine)
    await clients.ask_many(12)
    return clients


async def test_nothing_is_forecast_before_enough_is_measured(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    engine = make_engine()
    await nursery.start(engine.engine.run)
    limits = StreamLimits(ends_at=trio.current_time() + 0.001, refuses_late=True)
    clients = Clients(engine=engine)
    nursery.start_soon(clients.ask)
    await trio.sleep(0.1)
    with pytest.raises(TimeoutError):
        await clients.ask(limits)


async def test_a_request_that_is_alone_is_taken_whatever_was_measured(
    clients: Clients, autojump_clock: trio.abc.Clock
) -> None:
    """Otherwise wrong measurements could never be corrected."""
    limits = StreamLimits(ends_at=trio.current_time() + 0.001, refuses_late=True)
    with pytest.raises(TimeoutError):
        await clients.ask(limits)


@pytest.mark.parametrize("num_before", [1, 5, 40])
async def test_a_forecast_is_near_the_truth(
    clients: Clients,
    nursery: trio.Nursery,
    num_before: int,
    autojump_clock: trio.abc.Clock,
) -> None:
    await clients.keep_asking(nursery, num_before)
    forecast = clients.forecast()
    seconds = await clients.ask()
    assert 0.6 * seconds < forecast.total < 1.4 * seconds
    assert forecast.queue < forecast.first < forecast.total
    # A slot becomes free when an answer ends.
    assert (forecast.queue > forecast.alone) == (num_before == 40)


async def test_a_long_prompt_takes_its_time(
    clients: Clients, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    await clients.keep_asking(nursery)
    forecasts = [clients.forecast(num_prompt) for num_prompt in (60, 600, 6000)]
    added = [each.first - forecasts[0].first for each in forecasts]
    assert added[1] == pytest.approx(0.006 * 540, rel=0.3)
    assert added[2] == pytest.approx(0.006 * 5940, rel=0.3)


async def test_a_prompt_that_is_cached_takes_little_time(
    clients: Clients, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """A client with a long system prompt is not refused for its length."""
    ann = replace(clients, client=Client(name="ann"), prefix=(7,) * 3000)
    await ann.ask()
    await ann.ask_many(40)
    nursery.start_soon(clients.ask)
    await ann.keep_asking(nursery, 10)
    uncached, forecast = clients.forecast(3060), ann.forecast(3060)
    seconds = await ann.ask()
    assert 0.6 * seconds < forecast.total < 1.4 * seconds
    prompts = [each.first - each.queue for each in (uncached, forecast)]
    assert prompts[0] > prompts[1] + 0.8 * 0.006 * 3000


async def test_a_request_that_would_be_late_is_refused_at_once(
    clients: Clients, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    await clients.keep_asking(nursery, 40)
    begin = trio.current_time()
    limits = StreamLimits(
        ends_at=begin + 30, end_param="X-Request-Timeout", refuses_late=True
    )
    with pytest.raises(DeadlineUnreachable) as caught:
        await clients.ask(limits)
    assert trio.current_time() == begin
    assert caught.value.param == "X-Request-Timeout"
    assert "30.0 s left" in str(caught.value)
    assert clients.engine.num_refused_late == 1
    # If it comes again then, it is taken.
    await trio.sleep(caught.value.retry_after_seconds)
    later = replace(limits, ends_at=trio.current_time() + 30)
    assert await clients.ask(later) < 30


async def test_a_request_that_would_wait_too_long_is_refused(
    clients: Clients, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    await clients.keep_asking(nursery, 80)
    limits = StreamLimits(
        starts_by=trio.current_time() + 5, max_queue_seconds=5, refuses_late=True
    )
    with pytest.raises(DeadlineUnreachable, match="^max_queue_seconds: "):
        await clients.ask(limits)


async def test_a_request_that_nobody_could_finish_needs_its_first_token_only(
    clients: Clients, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """Its client gets as much as there is time for."""
    await clients.keep_asking(nursery)
    forecast = clients.forecast()
    assert 2 * forecast.first < forecast.alone
    limits = StreamLimits(
        ends_at=trio.current_time() + 2 * forecast.first, refuses_late=True
    )
    with pytest.raises(TimeoutError):
        await clients.ask(limits)
    await clients.keep_asking(nursery, 80)
    limits = replace(limits, ends_at=trio.current_time() + 2 * forecast.first)
    with pytest.raises(DeadlineUnreachable):
        await clients.ask(limits)


async def test_a_client_does_not_wait_for_all_requests_of_another(
    clients: Clients, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    ann = replace(clients, client=Client(name="ann"))
    await ann.keep_asking(nursery, 80)
    bob = replace(clients, client=Client(name="bob"))
    assert ann.forecast().total > 4 * bob.forecast().total
    seconds = await bob.ask()
    assert seconds < ann.forecast().total / 3


@dataclass(kw_only=True)
class Outcomes:
    """The fates of the requests that came in some time."""

    num_in_time: int = 0
    num_refused: int = 0
    num_late: int = 0


async def play(
    engine: TextEngine,
    *,
    interval: float,
    since: float = 100.0,
    until: float = 250.0,
    deadline: float = 60.0,
) -> Outcomes:
    """Let requests come at random times; return the outcomes of the last ones.

    Args:
      interval: mean seconds between two requests after the first 100 seconds.
      since: when those come that count.
      until: when the last one comes.
    """
    clients, chance, outcomes = Clients(engine=engine), random.Random(0), Outcomes()

    async def ask() -> None:
        began = trio.current_time()
        limits = StreamLimits(ends_at=began + deadline, refuses_late=True)
        counted = outcomes if began >= since else Outcomes()
        try:
            await clients.ask(limits)
            counted.num_in_time += 1
        except DeadlineUnreachable:
            counted.num_refused += 1
        except (TrioserveError, TimeoutError):
            counted.num_late += 1

    async def come(end: float, interval: float) -> None:
        async with trio.open_nursery() as nursery:
            while trio.current_time() < end:
                nursery.start_soon(ask)
                await trio.sleep(chance.expovariate(1 / interval))

    async with trio.open_nursery() as nursery:
        await nursery.start(engine.engine.run)
        await come(100.0, 3.0)
        await come(until, interval)
        nursery.cancel_scope.cancel()
    return outcomes


def test_goodput_stays_in_an_overload(make_engine: MakeEngine) -> None:
    """Five times as many requests come as can be answered."""
    goodput = {}

    async def measure(load: float) -> None:
        # A little more than the device needs for a request.
        outcomes = await play(make_engine(), interval=1.0 / load)
        goodput[load] = outcomes.num_in_time / 150

    for load in (1, 5):
        run_virtually(lambda: measure(load))
    assert goodput[1] > 0.9
    # It is below half if none is refused.
    assert goodput[5] > 0.9 * goodput[1]


@pytest.mark.parametrize("num_slots", [pytest.param(8, marks=pytest.mark.matrix), 64])
async def test_a_device_that_becomes_slower_makes_few_requests_late(
    make_engine: MakeEngine, num_slots: int, autojump_clock: trio.abc.Clock
) -> None:
    """Requests may be late only before the engine is known to be slow."""
    outcomes = await play(
        make_engine(num_slots, slow_from=200.0),
        interval=1 / 3,
        since=200.0,
        until=300.0,
    )
    assert outcomes.num_late < 20
    assert outcomes.num_in_time > 15


def test_limits_are_not_checked_unless_there_are_some() -> None:
    assert not StreamLimits(refuses_late=True).needs_forecast
    assert not StreamLimits(ends_at=1.0).needs_forecast
    assert StreamLimits(starts_by=1.0, refuses_late=True).needs_forecast
    assert math.isinf(StreamLimits().ends_at)


async def test_many_prompts_are_no_long_one(
    clients: Clients, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    await clients.keep_asking(nursery)
    engine = clients.engine.engine
    one = engine.forecast(Demand(num_prompt_tokens=6400, num_prompts=1))
    many = engine.forecast(Demand(num_prompt_tokens=6400, num_prompts=100))
    assert one is not None and many is not None
    assert many.first <= one.first * 1.1


async def test_only_the_time_of_others_is_multiplied(
    clients: Clients, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    await clients.keep_asking(nursery)
    forecast, now = clients.forecast(), trio.current_time()
    added = forecast.total - forecast.alone
    StreamLimits(ends_at=now + 0.99 * forecast.alone).check(forecast)
    StreamLimits(ends_at=now + forecast.alone + 1.51 * added).check(forecast)
    with pytest.raises(DeadlineUnreachable):
        StreamLimits(ends_at=now + forecast.alone + 1.49 * added).check(forecast)
    # The deadline itself answers requests that are over it.
    StreamLimits(ends_at=now + 60, starts_by=now).check(forecast)


async def test_refused_requests_change_little_for_others(
    clients: Clients, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    await clients.keep_asking(nursery)
    before = clients.forecast().total
    limits = StreamLimits(ends_at=trio.current_time() + 25.0, refuses_late=True)
    for _ in range(20):
        with pytest.raises((DeadlineUnreachable, TimeoutError)):
            await clients.ask(replace(limits, ends_at=trio.current_time() + 0.3), 8000)
    assert clients.forecast().total < 1.5 * before


async def test_answers_that_a_deadline_cut_do_not_count_as_short_ones(
    clients: Clients, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    """Otherwise each late request would let in more requests, which would be late, too."""
    await clients.keep_asking(nursery)
    before = clients.forecast().alone
    for _ in range(20):
        with pytest.raises(TimeoutError):
            await clients.ask(StreamLimits(ends_at=trio.current_time() + 1.0))
    await clients.keep_asking(nursery)
    assert clients.forecast().alone > 0.8 * before


async def test_the_first_of_several_sequences_needs_one_slot(
    clients: Clients, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    for _ in range(5):
        nursery.start_soon(clients.ask)
    await trio.sleep(2.0)
    engine = clients.engine.engine
    few = engine.forecast(Demand(num_prompt_tokens=60, num_sequences=2))
    many = engine.forecast(Demand(num_prompt_tokens=60, num_sequences=8))
    assert few is not None and many is not None
    assert few.queue == many.queue
    assert many.total > few.total
