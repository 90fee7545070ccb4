"""The log has a line of rates every ten seconds while there is work, and no other."""

from __future__ import annotations

from array import array
import logging

import pytest
import trio
from trio.testing import MockClock

from trioserve.engine.generation.core import LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.engine.pooling.core import LocalPoolingCore
from trioserve.engine.pooling.engine import TensorEngine
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.pooling.scheduler import PoolingScheduler
from trioserve.server.rates import log_rates
from trioserve.testing.fake_device import (
    FakeDevice,
    FakeExecutor,
    FakePoolingDevice,
    make_info,
    make_pooling_info,
)
from trioserve.types.pooling import PoolingInput, PoolingParams
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import SamplingParams


@pytest.fixture(autouse=True)
def log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="trioserve.server.rates")


def make_engine() -> TokenEngine:
    """Make an engine that runs one sequence at once, with two steps a second."""
    scheduler = Scheduler(
        num_blocks=100,
        block_size=16,
        max_num_seqs=1,
        max_num_batched_tokens=64,
        max_model_len=256,
    )
    info = make_info(256)
    executor = FakeExecutor(FakeDevice(block_size=16).step, step_seconds=0.5)
    core = LocalCore(scheduler, executor, info=info)
    return TokenEngine(core, info=info, max_num_sequences=9)


async def generate(engine: TokenEngine, max_tokens: int) -> None:
    prompt = Prompt(token_ids=tuple(range(64)))
    sampling = SamplingParams(seed=0, max_tokens=max_tokens)
    async with engine.open_stream([prompt], sampling) as deltas:
        async for _ in deltas:
            pass


async def test_generation(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    loaded: list[TokenEngine] = []
    nursery.start_soon(log_rates, lambda: {"": each for each in loaded[:1]})
    await trio.sleep(25)
    loaded.append(make_engine())
    await nursery.start(loaded[0].run)
    await trio.sleep(10.1)
    assert caplog.messages == []
    # The first takes 20 seconds, and the second waits for it.
    nursery.start_soon(generate, loaded[0], 40)
    await trio.sleep(0.1)
    nursery.start_soon(generate, loaded[0], 4)
    await trio.sleep(100)
    assert caplog.messages == [
        "prompts 6.4 tokens/s, answers 0.9 tokens/s, 1 running, 1 waiting, "
        "KV cache 5.0%, prefix cache hits 0.0%",
        "prompts 0.0 tokens/s, answers 2.0 tokens/s, 1 running, 1 waiting, "
        "KV cache 6.0%",
        "prompts 6.4 tokens/s, answers 1.5 tokens/s, 0 running, 0 waiting, "
        "KV cache 0.0%, prefix cache hits 75.0%",
    ]
    caplog.clear()
    # An engine that has started again has not done negative work.
    loaded[0] = make_engine()
    await trio.sleep(100)
    assert caplog.messages == []


async def test_pooling(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    core = LocalPoolingCore(
        PoolingScheduler(max_num_seqs=1, max_num_batched_tokens=64),
        FakeExecutor(FakePoolingDevice().step, step_seconds=6.0),
    )
    engine = TensorEngine(
        core,
        info=make_info(64),
        pooling=make_pooling_info("embed"),
        max_num_inputs=9,
    )
    await nursery.start(engine.run)
    nursery.start_soon(log_rates, lambda: {"": engine})
    await trio.sleep(25)
    with engine.open_request(2, PoolingParams(task="embed")) as request:
        await request.pool([PoolingInput(token_ids=array("i", range(30)))] * 2)
    await trio.sleep(100)
    assert caplog.messages == [
        "texts 0.0 tokens/s, 1 running, 1 waiting",
        "texts 6.0 tokens/s, 0 running, 0 waiting",
    ]
