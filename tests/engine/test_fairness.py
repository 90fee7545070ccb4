"""A large request does not slow down another one's stream, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
import math

import pytest
import trio
import trio.testing

from trioserve.engine.generation.engine import TokenEngine
from trioserve.types.plan import StepPlan
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import SamplingParams

MakeEngine = Callable[..., TokenEngine]

TARGET = 0.25


def seconds_of(plan: StepPlan) -> float:
    """Return about the time of SmolLM2-135M on two cores, with attention."""
    pairs = sum(row.num_tokens * (row.start + row.num_tokens / 2) for row in plan.rows)
    contexts = sum(row.start for row in plan.rows)
    rows = 0.001 * len(plan.rows) + 0.0006 * plan.num_tokens
    return 0.02 + rows + 3e-6 * contexts + 3e-7 * pairs


# The longest time of a chunk of one block of 4 tokens, after 4,000 tokens.
BLOCK_SECONDS = 0.03


@pytest.fixture
def make_server(make_engine: MakeEngine) -> MakeEngine:
    def make(max_step_seconds: float = TARGET) -> TokenEngine:
        return make_engine(
            num_blocks=40_000,
            max_num_seqs=128,
            max_num_batched_tokens=512,
            max_model_len=8192,
            max_step_seconds=max_step_seconds,
            seconds_of=seconds_of,
        )

    return make


class Stream:
    """A stream that goes on as long as its nursery.

    Attributes:
      longest_gap: seconds between two of its tokens, since `reset`.
    """

    def __init__(self, engine: TokenEngine) -> None:
        self._engine = engine
        self._last: float | None = None
        self.longest_gap = 0.0

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        sampling = SamplingParams(max_tokens=8000, seed=0)
        async with self._engine.open_stream([make_prompt(5)], sampling) as deltas:
            async for _ in deltas:
                now = trio.current_time()
                if self._last is not None:
                    self.longest_gap = max(self.longest_gap, now - self._last)
                elif task_status is not None:
                    task_status.started()
                self._last = now


def make_prompt(length: int, first: int = 0) -> Prompt:
    return Prompt(token_ids=tuple((first + i) % 2000 for i in range(length)))


async def collect(engine: TokenEngine, prompts: list[Prompt], max_tokens: int) -> float:
    """Let prompts be answered; return the seconds until the first token."""
    begin = trio.current_time()
    first = None
    sampling = SamplingParams(max_tokens=max_tokens, seed=0)
    async with engine.open_stream(prompts, sampling) as deltas:
        async for _ in deltas:
            first = trio.current_time() - begin if first is None else first
    assert first is not None
    return first


@pytest.mark.parametrize("max_step_seconds", [TARGET, math.inf])
async def test_a_long_prompt_stretches_no_stream_beyond_the_bound(
    make_server: MakeEngine,
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
    max_step_seconds: float,
) -> None:
    engine = make_server(max_step_seconds)
    await nursery.start(engine.run)
    stream = Stream(engine)
    await nursery.start(stream.run)
    # A longer prompt would be hashed in a thread, and threads take no virtual time.
    seconds = await collect(engine, [make_prompt(4000)], max_tokens=1)
    if max_step_seconds == TARGET:
        assert stream.longest_gap <= TARGET + BLOCK_SECONDS
        assert seconds < 8
    else:
        assert stream.longest_gap > 3 * TARGET


async def test_a_request_with_many_prompts_stretches_no_stream_beyond_the_bound(
    make_server: MakeEngine,
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """121 rows of 500 tokens take half a second, and one of each request a tenth of it."""
    engine = make_server()
    await nursery.start(engine.run)
    stream = Stream(engine)
    await nursery.start(stream.run)
    async with trio.open_nursery() as others:
        for first in range(0, 1600, 200):
            prompts = [make_prompt(500, first + i) for i in range(15)]
            others.start_soon(collect, engine, prompts, 40)
    assert stream.longest_gap <= TARGET + BLOCK_SECONDS


async def test_a_short_request_has_a_slot_soon_beside_one_with_many_prompts(
    make_engine: MakeEngine,
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """1,024 prompts of five steps each are 640 steps on eight slots."""
    engine = make_engine(max_queued_requests=4096, step_seconds=1.0)
    await nursery.start(engine.run)
    prompts = [make_prompt(2, first) for first in range(1024)]
    nursery.start_soon(collect, engine, prompts, 5)
    await trio.sleep(12.5)
    # At worst the eight running sequences have just begun; two steps are in flight.
    assert await collect(engine, [make_prompt(3)], 1) <= 5 + 2
