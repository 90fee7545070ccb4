"""The bench of shards reports its figures."""

from __future__ import annotations

import pytest
import tensor
import trio

from trioserve.engine.generation.core import LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.testing.fake_device import FakeDevice, FakeExecutor, make_info


async def test_a_turn_measures_the_known_speed_of_a_device(
    autojump_clock: object,
) -> None:
    """In virtual time a step takes 10 ms, and reads a chunk or writes a token."""
    info = make_info(2048)
    scheduler = Scheduler(
        num_blocks=1024,
        block_size=16,
        max_num_seqs=64,
        max_num_batched_tokens=256,
        max_model_len=info.max_model_len,
        prefix_caching=False,
    )
    device = FakeExecutor(FakeDevice().step, step_seconds=0.01, depth=2)
    core = LocalCore(scheduler, device, info=info)
    engine = TokenEngine(core, info=info, max_num_sequences=64)
    load = tensor.Load(prompt_tokens=512, num_streams=8, stream_tokens=5)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        figures = await tensor.take_turn(engine, load, 1)
        nursery.cancel_scope.cancel()
    assert figures["first_ms"] == pytest.approx(20)
    assert figures["single"] == pytest.approx(100)
    assert figures["many"] == pytest.approx(800)
